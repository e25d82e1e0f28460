"""REST calls and sockets: retries, pacing, reconnects."""
