"""What agents and people share: directories, files, sessions."""
