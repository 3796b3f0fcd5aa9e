"""Measurements, run by scripts and never by pytest: `scripts/gpu-suite SUITE` on a machine with an NVIDIA GPU.

`kmod/suite.py` is `scripts/kmod-suite`, which measures in the virtual machines of `tests/vm`. `tests/unit/bench` tests
all this on the simulated stack.

`core` starts and ends what a measurement needs (a stock MPS daemon, the guard, CUDA client programs) and knows no
measurement; each suite is a package of its own with one file a measurement, listed in `suites.py`. Nothing here
changes clocks, power, MIG or compute mode, and nothing resets a GPU.
"""
