"""A lane's sentinel: a process with a GPU core dump that names the place of an SM fault, kept while clients are there.

It is a client of the lane itself (`guard.sentinel`), and so it is there only while other clients are: without -M one
user's clients keep those of another user waiting. It runs as the user that the server runs as. It is taken off the lane
as soon as it has dumped, for the server recovers only when its clients are gone, and put there again when the lane is
ready and has clients.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from mpsguard.guard import sentinel
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.model import LaneState, Notify
from mpsguard.guard.sensors.sensor import SensorState
from mpsguard.linux.files.inotify import FileWatch
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.child import wait_or_kill
from mpsguard.linux.tasks import beside

PROGRAM: Final = (sys.executable, "-I", str(Path(sentinel.__file__).resolve()))

_SETTLE: Final = 1.0
"""Seconds after which clients that came have started: making a context holds up others that make theirs."""
_READY: Final = 30.0
"""Seconds for the context of the sentinel."""
_DUMP: Final = 1.0
"""Seconds in which a dump comes after the lane faulted; 0.05 to 0.12 were seen."""
_LEAVE: Final = 5.0
"""Seconds in which it must have ended once told to."""
_BACKOFF: Final = 60.0
"""Seconds before the next try when one could not be started."""
_DUMP_SWITCHES: Final = {
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
    # Not skip_abort: in trials with it, some faults left a server that took no client again (H200, 580.159.04).
    "CUDA_COREDUMP_GENERATION_FLAGS": "skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,"
    "skip_local_memory,skip_constbank_memory",
    # What makes a context smaller: one hardware queue, no cache of compiled kernels.
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "CUDA_CACHE_DISABLE": "1",
}


class SentinelFailedError(Exception):
    """It could not be put on the lane; one line says why."""


class LaneSentinel:
    """Keeps one lane's sentinel. `run` does it until cancelled; nothing of it is left then."""

    def __init__(
        self,
        lane: Lane,
        clients: Callable[[], int],
        dumped: Callable[[bytes, float], None],
        notice: Notify,
        program: tuple[str, ...] = PROGRAM,
    ) -> None:
        """``clients`` counts the lane's clients; ``dumped`` gets a dump and when it began; ``notice``: see `Lane`."""
        self._lane = lane
        self._clients = clients
        self._dumped = dumped
        self._notice = notice
        self._program = program
        self._changed = asyncio.Event()
        self._state = SensorState(False, "no clients on the lane")
        self.pid: int | None = None
        """Of the process, while it is there."""

    def look(self) -> None:
        """To be called when clients came or went, or the lane's state changed."""
        self._changed.set()

    def state(self) -> SensorState:
        """Whether it watches the lane now, or why not."""
        return self._state

    async def run(self) -> None:
        """Keep it on the lane whenever that is of use."""
        while True:
            await self._until(self._wanted)
            await asyncio.sleep(_SETTLE)
            if not self._wanted():
                continue
            try:
                await self._stand()
            except (SentinelFailedError, OSError) as error:
                why = f"{error.filename or 'sentinel'}: {error.strerror}" if isinstance(error, OSError) else str(error)
                self._state = SensorState(False, why)
                self._notice("sentinel_failed", {"detail": why})
                await asyncio.sleep(_BACKOFF)
            else:
                self._state = SensorState(False, "no clients on the lane")

    def _wanted(self) -> bool:
        return self._clients() > 0 and self._lane.report.state is LaneState.ACTIVE

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def _stand(self) -> None:
        """From its start to its end; raises SentinelFailedError or OSError."""
        owner = await self._owner()
        if owner is None:
            return
        core = os.memfd_create("sentinel-core", os.MFD_CLOEXEC)
        written: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        began: list[float] = []

        def touched() -> None:
            began.append(time.monotonic())
            if os.fstat(core).st_size and not written.done():
                written.set_result(began[0])

        watch = None
        try:
            watch = FileWatch(Path(f"/proc/self/fd/{core}"), touched, closed=True)
            async with self._started(core, owner) as child:
                await _ready(child)
                self._state = SensorState(True, f"process {child.pid} watches the lane")
                self._notice("sentinel_ready", {"pid": child.pid})
                async with beside(self._until(lambda: not self._wanted()), child.wait()) as (leave, ended):
                    await asyncio.wait({leave, ended, written}, return_when=asyncio.FIRST_COMPLETED)
                    if self._lane.report.state is not LaneState.ACTIVE and not written.done():
                        await asyncio.wait({written}, timeout=_DUMP)
                    by_itself = ended.done() and not leave.done() and not written.done()
                    if written.done():
                        # At once: its process takes some tenths of a second to end.
                        size = min(os.fstat(core).st_size, sentinel.LARGEST_CORE)
                        self._dumped(os.pread(core, size, 0), written.result())
            if by_itself:
                raise SentinelFailedError(f"it ended by itself, with status {child.returncode}")
        finally:
            if watch is not None:
                watch.close()
            os.close(core)

    async def _owner(self) -> tuple[int, int] | None:
        """Return the uid of the lane's server, which serves that user's clients or, as root, all; None without one."""
        report = await self._lane.fresh()
        try:
            return procfs.uid(report.servers[0].process.pid) if report.servers else None
        except ProcessLookupError:
            return None

    @asynccontextmanager
    async def _started(self, core: int, owner: tuple[int, int]) -> AsyncIterator[asyncio.subprocess.Process]:
        """The child; it has ended when the block is left."""
        user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = {"user": owner[0], "group": owner[1], "extra_groups": []}
        child = await asyncio.create_subprocess_exec(
            *self._program,
            env=self._environment(core),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(core,),
            start_new_session=True,
            **user,
        )
        self.pid = child.pid
        try:
            yield child
        finally:
            assert child.stdin is not None
            child.stdin.close()
            try:
                with suppress(TimeoutError):
                    # It is idle: its death by a signal leaves no work behind.
                    await wait_or_kill(child, _LEAVE)
            finally:
                self.pid = None

    def _environment(self, core: int) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        return {
            **kept,
            **_DUMP_SWITCHES,
            "CUDA_MPS_PIPE_DIRECTORY": str(self._lane.spec.pipe_directory),
            # A memory file of ours, by the number it has in the sentinel: no path that another process could write to.
            "CUDA_COREDUMP_FILE": f"/proc/self/fd/{core}",
        }


async def _ready(child: asyncio.subprocess.Process) -> None:
    assert child.stdout is not None
    try:
        async with asyncio.timeout(_READY):
            line = (await child.stdout.readline()).decode(errors="replace").strip()
    except (TimeoutError, ValueError):
        raise SentinelFailedError(f"it was not ready within {_READY:g} s") from None
    if line != "ready":
        raise SentinelFailedError(procfs.printable(line)[:200] or "it ended without a word")
