"""What each command asks of the guard and what the guard answers, one module a command."""
