"""Right-sizing: the time of a program by its share of the SMs, and the least share that it needs."""
