"""What happens to the guard's own directories and sockets: removed, replaced, mounted over, and the like."""
