"""SM faults leave no name in the stock driver's log: what each way to find one is worth, and what it costs.

`docs/guides/sm-faults.md` says how each works; the numbers there are this suite's.
"""

from typing import Final

from tests.bench.core.bench import Measurement
from tests.bench.sm import accuracy, cost, places

MEASUREMENTS: Final[tuple[Measurement, ...]] = (accuracy.MEASUREMENT, places.MEASUREMENT, cost.MEASUREMENT)
