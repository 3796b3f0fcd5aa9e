"""A token server that keeps weights, KV cache and requests beyond its process. See `__main__`."""
