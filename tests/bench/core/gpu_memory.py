"""How much memory of the GPU is taken: by NVML, or of a simulated one."""

import importlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from tests.bench.core.bench import Bench, Target
from tests.bench.core.errors import SuiteError

MIB: Final = 1 << 20
_SIMULATED: Final = "/memfd:simulated-gpu-memory"
_TICK: Final = 0.05


class GpuMemory(Protocol):
    """What is asked of a GPU."""

    def used(self) -> int:
        """Return the bytes allocated now by all processes."""


class NvmlMemory:
    """GPU 0, or the one that CUDA_VISIBLE_DEVICES names by its UUID; one reading takes about a millisecond."""

    def __init__(self, library: Any) -> None:
        """``library`` is pynvml (nvidia-ml-py), initialised."""
        self._library = library
        uuid = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        named = uuid.startswith("GPU-")
        self._handle = library.nvmlDeviceGetHandleByUUID(uuid) if named else library.nvmlDeviceGetHandleByIndex(0)

    def used(self) -> int:
        """By nvmlDeviceGetMemoryInfo."""
        return int(self._library.nvmlDeviceGetMemoryInfo(self._handle).used)


class SimulatedMemory:
    """What the clients of a simulated MPS server hold: it has a descriptor of each."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def used(self) -> int:
        """The sizes of their memory files together."""
        return sum(size for pid in self._target.ui.servers() for size in _files(Path(f"/proc/{pid}/fd")))


def settled(memory: GpuMemory, quiet: float = 2.0, within: float = 20.0) -> int:
    """Return the bytes in use when they have been the same for ``quiet`` seconds; SuiteError after ``within``.

    Of a client of MPS that has ended, the server frees the memory some time after its end.
    """
    ends = time.monotonic() + within
    used, since = memory.used(), time.monotonic()
    while time.monotonic() - since < quiet:
        if time.monotonic() > ends:
            raise SuiteError(f"the GPU memory in use still changes after {within:g} s")
        time.sleep(_TICK)
        if (now := memory.used()) != used:
            used, since = now, time.monotonic()
    return used


@contextmanager
def gpu_memory(bench: Bench, target: Target) -> Iterator[GpuMemory]:
    """A reader for a `with` block; SuiteError if NVML fails."""
    if bench.programs.simulated:
        yield SimulatedMemory(target)
        return
    library: Any = importlib.import_module("pynvml")
    try:
        library.nvmlInit()
        try:
            yield NvmlMemory(library)
        finally:
            library.nvmlShutdown()
    except library.NVMLError as error:
        raise SuiteError(f"NVML: {error}") from None


def _files(directory: Path) -> Iterator[int]:
    for entry in directory.iterdir():
        with suppress(FileNotFoundError):  # closed since the list was read
            if os.readlink(entry).startswith(_SIMULATED):
                yield entry.stat().st_size
