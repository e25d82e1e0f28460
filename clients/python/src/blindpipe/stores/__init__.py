"""What a client must not forget, and where it is kept."""
