"""SM errors: the process in the kernel of which an SM stopped, which the driver's own log does not say.

Two things are put together. A GPU core dump (`gpu_core`) has the address of the instruction at which an SM stopped;
any process's dump will do, for the SMs are common to all. And that address is one of the process with that kernel:
CUDA reserves what it maps for the GPU in the process too (`linux.reserved_ranges`). The clients' memory maps are read
as soon as the kernel log tells of an SM fault, before any client ends of it.

Reading is done by one thread of its own, which is left behind if it is held up: a process can lock its memory map.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import ClassVar, Final, Self

import msgspec

from mpsguard.guard.evidence import SM_XIDS, Evidence, OwnDump, SmError, Source, Trust, Xid
from mpsguard.guard.model import Client
from mpsguard.guard.sensors.gpu_core import GpuCore, NotACoreError, exception_name, parse
from mpsguard.guard.sensors.sensor import CLOSE_WITHIN, Sensor, SensorSetup, SensorState, register
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.process_reader import ProcessReader
from mpsguard.linux.processes.reserved_ranges import ReservedRanges, reserved_ranges
from mpsguard.linux.side_threads import SideThreads

FRESH: Final = 10.0
"""Seconds for which a look at the memory maps is good: no dump takes longer to come."""
_AGAIN: Final = 1.0
"""Seconds within which further lines of the kernel log are taken to be of the same fault."""
_MOST_WAITING: Final = 512
"""Dumps that may wait for the reader."""
_HUGE_PAGE: Final = 2 << 20
_MOST_CODE: Final = 64 << 20
"""Bytes; CUDA reserves code in whole pages of 2 MiB (one was seen), heaps in 500 MiB, all else in 8 GiB."""
_MOST_PLACES: Final = 64
"""Different instructions taken from one dump."""


class _Look(msgspec.Struct, frozen=True):
    """All clients' memory maps at one time."""

    at: float
    maps: dict[ProcessKey, ReservedRanges]
    unread: tuple[ProcessKey, ...]


_LOOK_AFTER: Final = 0.01
"""Seconds from such a line until the clients' memory maps are read, which takes a core: takeovers come first. No client
hears of its error sooner than 40 ms after the fault."""

_MAPS_WITHIN: Final = 3.0
"""Seconds for the memory maps of one client: nothing but a name waits for them, and a machine is busy after a fault."""


@register
class SmErrorSensor(Sensor):
    """The `gpucore` sensor: owns one thread. Made inside a running event loop; evidence is emitted in it."""

    name: ClassVar[str] = Source.GPU_CORE.value

    def __init__(self, emit: Callable[[Evidence], None]) -> None:
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._reader = SideThreads("sm-errors", 1)
        self._waiting = 0
        self._maps = ProcessReader(_MAPS_WITHIN)
        # An interpreter's start is not to be part of the time of the first read: it comes after a fault.
        self._maps.start(1)
        self._clients: set[ProcessKey] = set()
        self._asked = 0.0
        self._look = _Look(0.0, {}, ())
        """Belongs to the reader's thread."""
        self._dumps = 0
        self._unreadable = 0
        self._closed = False

    def watch(self, process: ProcessKey) -> None:
        """Count a client among those that may be at fault."""
        self._clients.add(process)

    def unwatch(self, process: ProcessKey) -> None:
        """Count it among them no longer."""
        self._clients.discard(process)

    def sm_fault_seen(self) -> None:
        """The kernel log tells of an SM fault: look at the clients' memory while it is there."""
        now = time.monotonic()
        if now - self._asked > _AGAIN and not self._closed:
            self._asked = now
            self._reader.run(partial(self._look_at, frozenset(self._clients)))

    def dumped(
        self,
        read: Callable[[], bytes | GpuCore],
        began: float,
        process: ProcessKey | None,
        *,
        verified: bool = False,
    ) -> None:
        """A dump has been written, beginning at ``began``; by a client, or by the lane's sentinel (None).

        ``read`` gives it, once, in the reader's thread; it may raise OSError. ``verified``: it is known that no other
        process has written to it.
        """
        if self._closed or self._waiting >= _MOST_WAITING:
            self._unreadable += 1
            return
        self._waiting += 1
        self._reader.run(partial(self._read, read, began, process, verified, frozenset(self._clients)))

    @classmethod
    def open(cls, setup: SensorSetup) -> Self:
        """See `Sensor`."""
        return cls(setup.emit)

    def client_came(self, client: Client, _: ProcessHandle) -> None:
        """See `Sensor`."""
        self.watch(client.process)

    def client_ended(self, client: Client) -> None:
        """See `Sensor`."""
        self.unwatch(client.process)

    def observe(self, evidence: Evidence) -> None:
        """Look at the clients' memory soon after the kernel log has told of an SM fault."""
        if isinstance(evidence.what, Xid) and evidence.what.number in SM_XIDS:
            self._loop.call_later(_LOOK_AFTER, self.sm_fault_seen)

    def state(self) -> SensorState:
        """Always there; whether there are dumps is the sentinel's and the clients' choice."""
        detail = f"{self._dumps} GPU core dumps read"
        if self._unreadable:
            detail += f", {self._unreadable} not readable"
        return SensorState(True, detail)

    def close(self) -> None:
        """Give the thread back, when what it reads has been read; nothing is emitted afterwards. Safe to call twice."""
        self._closed = True
        self._maps.close()
        self._reader.close(CLOSE_WITHIN)

    # In the reader's thread.

    def _look_at(self, clients: Iterable[ProcessKey]) -> None:
        maps: dict[ProcessKey, ReservedRanges] = {}
        unread = []
        at = time.monotonic()
        for process in sorted(clients):
            try:
                maps[process] = reserved_ranges(process, self._maps)
            except OSError:
                unread.append(process)
        self._look = _Look(at, maps, tuple(unread))

    def _read(
        self,
        read: Callable[[], bytes | GpuCore],
        began: float,
        process: ProcessKey | None,
        verified: bool,
        clients: frozenset[ProcessKey],
    ) -> None:
        try:
            dump = read()
            core = parse(dump) if isinstance(dump, bytes) else dump
        except (NotACoreError, OSError):
            self._tell(None, ())
            return
        if abs(began - self._look.at) > FRESH:
            self._look_at(clients)
        found = observations(core, self._look.maps, self._look.unread, began, process, verified=verified)
        self._tell(core, tuple(found))

    def _tell(self, core: GpuCore | None, evidence: tuple[Evidence, ...]) -> None:
        with suppress(RuntimeError):  # the loop has ended, and wants no more
            self._loop.call_soon_threadsafe(self._told, core, evidence)

    # In the loop again.

    def _told(self, core: GpuCore | None, evidence: tuple[Evidence, ...]) -> None:
        self._waiting -= 1
        if self._closed:
            return
        self._dumps += core is not None
        self._unreadable += core is None
        for each in evidence:
            self._emit(each)


def observations(
    core: GpuCore,
    maps: dict[ProcessKey, ReservedRanges],
    unread: tuple[ProcessKey, ...],
    began: float,
    process: ProcessKey | None,
    *,
    verified: bool = False,
) -> Iterable[Evidence]:
    """What a dump tells, with the memory maps of the clients; ``process`` is the client that wrote it, if one did."""
    places = {each.pc: each.exception for each in core.sms if each.pc is not None}
    for pc, exception in sorted(places.items())[:_MOST_PLACES]:
        around = {holder: span for holder, ranges in maps.items() if (span := ranges.around(pc)) is not None}
        yield Evidence(
            source=Source.GPU_CORE,
            observed_at=time.monotonic(),
            happened_at=began,
            what=SmError(
                why=exception_name(exception),
                pc=pc,
                holders=tuple(sorted(around)),
                exact=tuple(sorted(holder for holder, span in around.items() if _like_code(span))),
                unread=unread,
                writer=process,
            ),
            trust=Trust.HINT,
        )
    if process is not None:
        yield Evidence(
            source=Source.GPU_CORE,
            observed_at=time.monotonic(),
            happened_at=began,
            what=OwnDump(core.raised, core.grids),
            process=process,
            trust=Trust.PROOF if verified else Trust.HINT,
            serial=str(process),
        )


def _like_code(span: tuple[int, int]) -> bool:
    first, end = span
    return first % _HUGE_PAGE == 0 and end % _HUGE_PAGE == 0 and end - first <= _MOST_CODE
