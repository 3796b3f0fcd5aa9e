"""Where the tour runs: the simulated stack, or this machine's GPU."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tests.bench.core import programs
from tests.bench.core.errors import NotRunError
from tests.bench.core.programs import CudaPrograms, Programs, Work
from tests.bench.results import origin
from tests.bench.simulated import SimulatedPrograms

_LONG_KERNEL: Final = Path(__file__).resolve().parent / "simulated_long_kernel.py"
_LONG: Final = Work(seconds=60, work=4_000_000, controlled=True)
"""Kernels of a tenth of a second on an H200, so that a kill is likely to hit one."""


class DemoPrograms(Programs, Protocol):
    """The suite's client programs and one more."""

    def long_kernel(self) -> list[str]:
        """Return the command of a client that, once released, always has a kernel in flight."""


@dataclass(frozen=True)
class RealDemoPrograms(CudaPrograms):
    """The suite's CUDA programs."""

    def long_kernel(self) -> list[str]:
        """Return the command of the worker with long kernels."""
        return self.worker(_LONG)


@dataclass(frozen=True)
class SimulatedDemoPrograms(SimulatedPrograms):
    """The suite's simulated programs, and one with a long kernel, which their worker lacks."""

    def long_kernel(self) -> list[str]:
        """Return the command of a simulated client with one long kernel."""
        return [sys.executable, str(_LONG_KERNEL)]


@dataclass(frozen=True)
class Machine:
    """Where the tour runs; `build` creates the programs in a directory."""

    banner: str
    build: Callable[[Path], DemoPrograms]


def simulated() -> Machine:
    """Return the simulated machine: no GPU, no vendor binary."""
    return Machine(
        "The GPU and NVIDIA's MPS daemon are SIMULATED here; nothing here was measured on a GPU. "
        "mpsguard itself is the real one.",
        lambda _: SimulatedDemoPrograms(),
    )


def real() -> Machine:
    """Return this machine with its GPU and the vendor's daemon; raise NotRunError if something is missing."""
    gpu = origin.gpu()
    if gpu.name is None:
        raise NotRunError("nvidia-smi names no NVIDIA GPU on this machine")
    programs.find_control()
    if shutil.which("nvcc") is None:
        raise NotRunError("nvcc is not on PATH: the CUDA programs cannot be built")
    return Machine(
        f"{gpu.name}, driver {gpu.driver}, CUDA {gpu.cuda}; NVIDIA's own MPS daemon, CUDA programs built now.",
        _build,
    )


def _build(directory: Path) -> RealDemoPrograms:
    built = programs.build(directory)
    return RealDemoPrograms(built.control, built.binary)
