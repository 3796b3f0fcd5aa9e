"""Operating the guard: for a while, with all that happens on a shared GPU; for jobs that may use some GPUs alone."""

from typing import Final

from tests.bench.ops import constrained_devices, soak

MEASUREMENTS: Final = (soak.MEASUREMENT, constrained_devices.MEASUREMENT)
