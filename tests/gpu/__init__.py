"""Measurements on a machine with an NVIDIA GPU: `scripts/gpu-suite SUITE`.

`core` starts and ends what a measurement needs (a stock MPS daemon, the guard, CUDA client programs) and knows no
measurement; each suite is a package of its own with one file a measurement, listed in `suites.py`. Nothing here
changes clocks, power, MIG or compute mode, and nothing resets a GPU.
"""
