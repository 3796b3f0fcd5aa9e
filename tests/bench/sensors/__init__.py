"""What the sensors cost while nothing happens."""

from typing import Final

from tests.bench.sensors import steady_cost

MEASUREMENTS: Final = (steady_cost.MEASUREMENT,)
