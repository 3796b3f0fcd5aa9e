"""One client's GPU address space under watch: its two queues, and evidence from them."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Final, Self

import msgspec

from mpsguard.guard.evidence import Evidence, Lost, Observation, Source, Trust, UvmFault
from mpsguard.linux.descriptors import foreign_fd
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.nvidia.uvm_events import Events, Fault
from mpsguard.linux.nvidia.uvm_processors import GpuAddresses, gpu_uuids, whole_gpu
from mpsguard.linux.nvidia.uvm_tools import ToolsDriver, Tracker, UvmStatusError

PAUSE: Final = 1.0
"""Seconds in which faults that are not fatal are left alone after some were read.

A client that uses managed memory has them by the ten thousand a second, as a matter of course: read as they come they
would keep the guard busy, and in one queue with the fatal ones they would crowd those out.
"""

_SLEW: Final = 5e-4
"""By how much CLOCK_MONOTONIC may run off CLOCK_MONOTONIC_RAW at most: NTP steers it by 500 ppm (adjtimex(2))."""


class Counts(msgspec.Struct):
    """What was not turned into evidence, over all address spaces of a sensor."""

    lost: int = 0
    """Fatal faults that found their queue full; each was reported as Lost."""
    unread: int = 0
    """Other faults that found theirs full, which is usual (see `PAUSE`) and not reported."""
    unknown: int = 0
    """Entries of an unknown kind."""


class WatchedSpace:
    """Owns the two trackers of an address space, and a copy of its file to know it again by.

    Between `start` and `stop`, which are the event loop's, it emits evidence about ``owner``. The rest may be called
    from any thread.
    """

    def __init__(self, owner: ProcessKey, file: int, fatal: Tracker, other: Tracker) -> None:
        self.owner = owner
        self._file = file
        self._file_lock = threading.Lock()
        self._fatal = fatal
        self._other = other
        self._gpus: dict[int, str] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._taken = 0

    @classmethod
    def open(cls, driver: ToolsDriver, file: int, owner: ProcessKey) -> Self:
        """Watch the address space behind ``file``, of which it keeps a copy; see `Tracker.attach` for the errors.

        OSError, too, where the kernel cannot compare files: what cannot be told from another's proves nothing.
        """
        copy = os.dup(file)
        try:
            foreign_fd.same_file(copy, file)
            fatal = Tracker.attach(driver, copy, Events.FATAL_FAULT)
            try:
                other = Tracker.attach(driver, copy, Events.GPU_FAULT)
            except BaseException:
                fatal.close()
                raise
        except BaseException:
            os.close(copy)
            raise
        return cls(owner, copy, fatal, other)

    @property
    def file(self) -> int:
        """The copy of its file, which stays its own."""
        return self._file

    def is_of(self, file: int) -> bool:
        """Whether ``file`` is of this address space; OSError where the kernel cannot compare. Once closed, none is."""
        with self._file_lock:
            return self._file >= 0 and foreign_fd.same_file(self._file, file)

    def is_same(self, other: "WatchedSpace") -> bool:
        """Whether both watch one address space; ``other`` is not being closed meanwhile."""
        return self.is_of(other._file)

    def read_gpus(self, driver: ToolsDriver, addresses: GpuAddresses, close_all: Callable[[list[int]], None]) -> None:
        """Learn which GPUs the client has registered by now; those of later events are unknown until the next time.

        ``close_all`` gets a copy of the file, for closing the last one may take long.
        """
        with self._file_lock:
            if self._file < 0:
                return
            file = os.dup(self._file)
        try:
            uuids = gpu_uuids(driver, file, self._fatal.layout)
            found = {number: addresses.of(uuid) for number, uuid in uuids.items()}
            self._gpus = {number: address for number, address in found.items() if address is not None}
        except (UvmStatusError, OSError):
            # An event without a GPU is as good a proof of the client.
            self._gpus = {}
        finally:
            close_all([file])

    def start(self, emit: Callable[[Evidence], None], counts: Counts, broke: Callable[["WatchedSpace"], None]) -> None:
        """Emit what comes; ``broke`` is called if the driver gives a queue up, and the space is of no use then."""
        self._emit, self._counts, self._broke = emit, counts, broke
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fatal.fileno(), self._read_fatal)
        # The driver looks into the queue before it enters the waiter (uvm_tools_poll): what came in between has not
        # caused a wake-up.
        self._take_fatal()
        self._watch_other()

    def stop(self) -> None:
        """Emit what is left, and nothing after it."""
        self._loop.remove_reader(self._fatal.fileno())
        self._loop.remove_reader(self._other.fileno())
        if self._pause is not None:
            self._pause.cancel()
        self._take_fatal()
        self._take_other()

    def close(self) -> None:
        """Let go of the address space; may take long (see `Tracker.close`)."""
        self._fatal.close()
        self._other.close()
        # Its number may be another file's from then on.
        with self._file_lock:
            file, self._file = self._file, -1
        os.close(file)

    def _read_fatal(self) -> None:
        if not self._take_fatal() and self._fatal.broken():
            self._give_up()

    def _read_other(self) -> None:
        if self._take_other():
            self._rest()
        elif self._other.broken():
            self._give_up()

    def _watch_other(self) -> None:
        self._pause = None
        self._loop.add_reader(self._other.fileno(), self._read_other)
        # Here too: what came before the waiter was entered has caused no wake-up.
        if self._take_other():
            self._rest()

    def _rest(self) -> None:
        self._loop.remove_reader(self._other.fileno())
        self._pause = self._loop.call_later(PAUSE, self._watch_other)

    def _give_up(self) -> None:
        self._emit_one(Lost(-1))
        self._broke(self)

    def _take_fatal(self) -> bool:
        drained = self._fatal.drain()
        self._emit_all(drained.faults)
        self._counts.unknown += drained.skipped
        self._counts.lost += drained.dropped
        if drained.dropped:
            self._emit_one(Lost(drained.dropped))
        return any(drained[:2])

    def _take_other(self) -> bool:
        drained = self._other.drain()
        self._emit_all(drained.faults)
        self._counts.unknown += drained.skipped
        self._counts.unread += drained.dropped
        return any(drained[:2])

    def _emit_all(self, faults: list[Fault]) -> None:
        for fault in faults:
            what = UvmFault(fault.address, fault.access, fault.fault_type, fault.fatal)
            gpu = self._gpus.get(whole_gpu(fault.processor, self._fatal.layout))
            self._emit_one(what, *_monotonic(fault.raw_ns), gpu)

    def _emit_one(
        self, what: Observation, happened_at: float | None = None, uncertainty: float = 0.0, gpu: str | None = None
    ) -> None:
        self._taken += 1
        now = time.monotonic()
        self._emit(
            Evidence(
                source=Source.UVM,
                observed_at=now,
                what=what,
                happened_at=happened_at,
                uncertainty=uncertainty,
                gpu=gpu,
                process=self.owner,
                trust=Trust.PROOF,
                # With the time: a guard that comes later counts from one again.
                serial=f"uvm:{self.owner}:{now:.6f}:{self._taken}",
            )
        )


def _monotonic(raw_ns: int) -> tuple[float, float]:
    """A time of CLOCK_MONOTONIC_RAW on CLOCK_MONOTONIC, and by how much that may be off; both in seconds."""
    before = time.monotonic_ns()
    raw_now = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    after = time.monotonic_ns()
    age = raw_now - raw_ns
    return ((before + after) / 2 - age) / 1e9, (after - before) / 2e9 + abs(age) / 1e9 * _SLEW
