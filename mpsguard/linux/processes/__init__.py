"""Processes of Linux: handles, ends, trees, /proc, privileges."""
