"""The simulated stack in the place of GPU, daemon and CUDA programs: tests the suite itself, measures nothing."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.core.programs import Work

_HERE: Final = Path(__file__).resolve().parent
_CLIENT: Final = _HERE / "simulated_client.py"
_CONTROL: Final = _HERE.parents[1] / "fault_injection" / "sim" / "bin" / "nvidia-cuda-mps-control"


@dataclass(frozen=True)
class SimulatedPrograms:
    """`fault_injection.sim` behind the same options."""

    control: str = str(_CONTROL)
    simulated: bool = True

    def worker(self, work: Work) -> list[str]:
        """A simulated client."""
        return [sys.executable, str(_CLIENT), *work.arguments()]

    def torch(self, work: Work) -> list[str]:
        """Another one: there is nothing of PyTorch to simulate."""
        return self.worker(work)


def simulated_programs(_directory: Path) -> SimulatedPrograms:
    """Nothing needs to be built."""
    return SimulatedPrograms()
