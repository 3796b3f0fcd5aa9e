"""On a real GPU: starts of models, cold and warm, and how many share memory. One file a measurement."""

from typing import Final

from tests.bench.start import fault, starting, zipf

MEASUREMENTS: Final = (*starting.MEASUREMENTS, zipf.MEASUREMENT, fault.MEASUREMENT)
