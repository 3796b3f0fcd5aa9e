"""A language model's token server whose weights, KV cache and requests outlive its process. See `__main__`."""
