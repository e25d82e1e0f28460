"""Blindpipe for Python."""
