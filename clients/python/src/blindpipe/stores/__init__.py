"""The stores of clients, for all that must survive a restart."""
