"""A training loop that keeps weights and optimiser state beyond its process. See `__main__`."""
