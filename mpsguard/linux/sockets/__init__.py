"""Sockets with credentials and descriptors."""
