"""GPU memory that outlives its process: named regions held as file descriptors, and leases on them."""
