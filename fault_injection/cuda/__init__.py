"""CUDA programs that run, or misbehave, on a real GPU; built and started by the GPU suite."""
