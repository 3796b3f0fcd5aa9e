"""What the NVIDIA driver shows of itself on Linux: devices, the UVM tools queue, uevents."""
