"""On a real GPU: every numbered fault, under stock MPS and under the guard, with three innocents.

`scripts/gpu-suite triage` runs the whole matrix; `python -m tests.bench.triage` runs parts of it, goes on where an
earlier run stopped, and keeps the cells. What is injected is `fault_injection/faults.toml`.
"""

from typing import Final

from tests.bench.core.bench import Measurement
from tests.bench.triage import newcomers, two_gpus
from tests.bench.triage.matrix import Plan, measurement

MEASUREMENTS: Final[tuple[Measurement, ...]] = (measurement(Plan()), two_gpus.MEASUREMENT, newcomers.MEASUREMENT)
