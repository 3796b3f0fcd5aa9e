"""Snapshots: the GPU memory of an unmodified program under the preload, copied into a directory while it runs on."""
