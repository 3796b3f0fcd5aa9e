"""Operating the guard for a while: everything that happens on a shared GPU, one after the other."""

from typing import Final

from tests.gpu.ops import soak

MEASUREMENTS: Final = (soak.MEASUREMENT,)
