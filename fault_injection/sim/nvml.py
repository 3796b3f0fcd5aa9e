# ruff: noqa: ARG002, D102, N802, N815 names and arguments are those of the vendor's module
"""The simulated NVML: the functions of ``pynvml`` that the guard uses, for the simulated GPU and its clients' memory.

No event ever happens on it. A client's memory is what it has open of the simulated GPU's memory.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from fault_injection.sim import gpu

_TIMEOUT: Final = 10
_MEMORY: Final = "/memfd:simulated-gpu-memory"
_SERVER: Final = b"nvidia-cuda-mps-server"


class NVMLError(Exception):
    """An error of NVML's, with its number."""

    def __init__(self, value: int) -> None:
        super().__init__(f"simulated NVML error {value}")
        self.value = value


class SimulatedNvml:
    """In the place of the module ``pynvml``."""

    NVMLError: type[Exception] = NVMLError
    nvmlEventTypeXidCriticalError: Final = 8

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlEventSetFree(self, events: Any) -> None: ...
    def nvmlDeviceRegisterEvents(self, handle: Any, types: int, events: Any) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return None

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:
        return SimpleNamespace(domain=0, bus=gpu.BUS, device=0)

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return gpu.printed(gpu.UUID_BYTES)

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return gpu.NAME

    def nvmlDeviceGetSupportedEventTypes(self, handle: Any) -> int:
        return self.nvmlEventTypeXidCriticalError

    def nvmlEventSetCreate(self) -> Any:
        return None

    def nvmlEventSetWait_v2(self, events: Any, timeout_ms: int) -> Any:
        time.sleep(timeout_ms / 1000)
        raise NVMLError(_TIMEOUT)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return SimpleNamespace(used=sum(size for _, size in _clients()), total=gpu.MEMORY_LIMIT_MIB << 20)

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Any) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in _clients()]


def _clients() -> Iterator[tuple[int, int]]:
    """Processes with simulated GPU memory open, but its servers, which have it of their clients."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            size = sum(_sizes(process / "fd"))
            if size and _SERVER not in (process / "cmdline").read_bytes():
                yield int(process.name), size


def _sizes(directory: Path) -> Iterator[int]:
    for entry in directory.iterdir():
        with suppress(FileNotFoundError):  # closed since the list was read
            if str(entry.readlink()).startswith(_MEMORY):
                yield entry.stat().st_size
