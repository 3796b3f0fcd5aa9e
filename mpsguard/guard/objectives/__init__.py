"""What a latency objective asks for, as pure functions."""
