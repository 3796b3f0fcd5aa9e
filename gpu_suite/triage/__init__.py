"""Issue 3's claims on real input: every numbered fault, under stock MPS and under the guard, with three innocents.

`scripts/gpu-suite triage` runs the whole matrix; `python -m gpu_suite.triage` runs parts of it, goes on where an
earlier run stopped, and keeps the cells. What is injected is `fault_injection/faults.toml`.
"""

from typing import Final

from gpu_suite.core.bench import Measurement
from gpu_suite.triage.matrix import Plan, measurement

MEASUREMENTS: Final[tuple[Measurement, ...]] = (measurement(Plan()),)
