"""GPU memory that outlives its process: named regions held as file descriptors, and who may write to them."""
