"""What the sensors cost while nothing happens."""

from typing import Final

from tests.gpu.sensors import steady_cost

MEASUREMENTS: Final = (steady_cost.MEASUREMENT,)
