"""The client programs, built from `fault_injection/cuda` or taken from the simulation."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from mpsguard.guard import config
from mpsguard.guard.config import ConfigError, DomainConfig
from tests.bench.core.errors import NotRunError, SuiteError

CUDA: Final = Path(__file__).resolve().parents[3] / "fault_injection" / "cuda"


@dataclass(frozen=True)
class Work:
    """What a client shall do; `fault_injection/cuda/worker.cu` explains the options."""

    seconds: float = 1.0
    work: int | None = None
    controlled: bool = False
    rounds: int = 1
    blocking: bool = False
    memory: int = 0
    managed: bool = False
    fault: str | None = None
    fault_at: float = 0.0
    in_flight: float | None = None

    def arguments(self) -> list[str]:
        """The same as command-line options."""
        return [
            *("--seconds", str(self.seconds)),
            *(("--work", str(self.work)) if self.work is not None else ()),
            *(("--controlled",) if self.controlled else ()),
            *(("--rounds", str(self.rounds)) if self.rounds > 1 else ()),
            *(("--blocking",) if self.blocking else ()),
            *(("--memory", str(self.memory)) if self.memory else ()),
            *(("--managed",) if self.managed else ()),
            *(("--fault", self.fault, "--fault-at", str(self.fault_at)) if self.fault else ()),
            *(("--in-flight", str(self.in_flight)) if self.in_flight is not None else ()),
        ]


class Programs(Protocol):
    """Command lines of the client programs, and the control daemon that goes with them."""

    @property
    def control(self) -> str:
        """The absolute path of `nvidia-cuda-mps-control`."""

    @property
    def simulated(self) -> bool:
        """Whether there is no GPU behind them, and nothing of a driver for a sensor to see."""

    def worker(self, work: Work) -> list[str]:
        """A runtime-API client."""

    def torch(self, work: Work) -> list[str]:
        """A PyTorch client."""


@dataclass(frozen=True)
class CudaPrograms:
    """The real ones."""

    control: str
    binary: Path
    simulated: bool = False

    def worker(self, work: Work) -> list[str]:
        """The compiled `worker.cu`."""
        return [str(self.binary), *work.arguments()]

    def partitioned(self, group: int, groups: int, *, fault: bool) -> list[str]:
        """The compiled `partitioned.cu`."""
        arguments = [str(group), str(groups), *(["--fault"] if fault else [])]
        return [str(self.binary.with_name("partitioned")), *arguments]

    def torch(self, work: Work) -> list[str]:
        """`torch_client.py` under this interpreter."""
        return [sys.executable, str(CUDA / "torch_client.py"), *work.arguments()]


def find_control() -> str:
    """The stock daemon on PATH; NotRunError if there is none."""
    try:
        # Not shutil.which: in a virtual environment that would be the program of ours with that name.
        return config.find_control_binary(DomainConfig())
    except ConfigError:
        raise NotRunError("nvidia-cuda-mps-control is not on PATH") from None


def build(directory: Path) -> CudaPrograms:
    """Compile the CUDA programs into `directory`, for the GPU of this machine; SuiteError with nvcc's words."""
    with ThreadPoolExecutor() as compilers:
        list(compilers.map(lambda name: compile_cuda(name, directory), ("worker", "partitioned")))
    return CudaPrograms(find_control(), directory / "worker")


def driver_library(nvcc: str) -> list[str]:
    """The compiler's flags for libcuda.

    A path from `nvcc`'s own stubs is added because a toolkit without a driver beside it has libcuda nowhere else.
    """
    stubs = Path(nvcc).resolve().parents[1] / "lib64" / "stubs"
    return [*(["-L", str(stubs)] if stubs.is_dir() else []), "-lcuda"]


def compile_cuda(name: str, directory: Path, flags: Sequence[str] = ()) -> Path:
    """Compile one of them, with further flags if there are any; NotRunError without nvcc, SuiteError with its words."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise NotRunError(f"nvcc is not on PATH: {name}.cu cannot be built")
    binary = directory / name
    command = [nvcc, "-std=c++20", "-O2", "-arch=native", "-o", str(binary), str(CUDA / f"{name}.cu"), *flags]
    command += driver_library(nvcc)
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if done.returncode:
        raise SuiteError(f"nvcc failed: {(done.stderr or done.stdout).strip()}")
    return binary
