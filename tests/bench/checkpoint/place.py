"""Where the suite's stores are, and how the programs are started."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpsguard.vault.wire.address import SOCKET_VARIABLE
from tests.bench.core.bench import Bench
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, not_measured
from tests.bench.core.guard import Guard
from tests.harness.guard_process import REPOSITORY

GIB: Final = 1 << 30
MEMORY: Final = Path("/dev/shm")
_MARGIN: Final = 2 * GIB
_WRITING: Final = 45.0
"""Seconds for the programs' ends, the guard's, and the result file."""


def device(bench: Bench) -> str:
    return "cpu" if bench.programs.simulated else "cuda"


def store_for(bench: Bench, name: str, images: int, size: int, *, on_disk: bool = False) -> tuple[Path, int]:
    """A directory with room for so many images of ``size`` bytes, and the size that fits, if less does.

    The larger of the run's own directory and a tmpfs, unless ``on_disk``: on a disk that is slower than the bus, the
    state of a checkpoint waits in the copier's buffers.
    """
    places = [bench.root]
    with suppress(OSError):
        if not on_disk and MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
            places.append(MEMORY)
    place = max(places, key=lambda path: shutil.disk_usage(path).free)
    free = shutil.disk_usage(place).free - (0 if bench.programs.simulated else _MARGIN)
    fits = min(size, max(free, 0) // images // (2 << 20) * (2 << 20))
    if fits < 4 << 20:
        raise SuiteError(f"no room for images: {free} bytes in {place}")
    directory = place / f"{bench.root.name}-{name}"
    directory.mkdir()
    return directory, fits


def within(bench: Bench, most: float) -> float:
    """Seconds to wait for a program, ``most`` or fewer: what it told must be written before the run is broken off."""
    return max(1.0, min(most, bench.left - _WRITING))


def finished(what: str, client: Client, timeout: float) -> list[Finding]:
    """Wait for a program's end; a row that does not hold if it failed, beside those of what it told before."""
    try:
        outcome = client.finish(timeout)
    except SuiteError as error:
        return [not_measured(f"{what}, to its end", str(error))]
    return [] if outcome.ok else [not_measured(f"{what}, to its end", outcome.describe()[:500])]


def start(
    bench: Bench,
    clients: Clients,
    guard: Guard,
    program: str,
    words: Sequence[object],
    *,
    more: Mapping[str, str] | None = None,
) -> Client:
    """One of this suite's programs, as a client of the guard's lane."""
    argv = [sys.executable, "-m", f"tests.bench.checkpoint.{program}", "--device", device(bench), *map(str, words)]
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {
        SOCKET_VARIABLE: str(guard.vault),
        "PYTHONPATH": path,
        "CUDA_DEVICE_MAX_CONNECTIONS": "2",
    }
    return clients.start(argv, guard.pipe_directory, program, variables | dict(more or {}))
