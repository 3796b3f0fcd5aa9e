"""A training loop whose weights and optimiser outlive its process. See `__main__`."""
