"""The kernel log: Xid lines of the NVIDIA driver, and those on GPUs that are gone, read from /dev/kmsg as they come.

Records are those of Documentation/ABI/testing/dev-kmsg: ``level and facility,sequence,microseconds,flags;text``, with
control characters written as ``\\x1b``.

Only the kernel can write records of facility 0 (``devkmsg_write`` turns 0 into "user"), so a line of the driver
cannot be forged; only the process name in it is a stranger's word, and it is left out.
"""

import asyncio
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final, Self

import msgspec

from mpsguard.guard.evidence import Evidence, LogRead, Lost, Observation, Source, Trust, UvmFault, WorkRepeated
from mpsguard.guard.sensors.kernel_lines import LostGpuLines, parse_xid_line
from mpsguard.guard.sensors.sensor import Sensor, SensorSetup, SensorState, register
from mpsguard.linux.boot import boot_id
from mpsguard.linux.processes.procfs import printable

KERNEL_FACILITY: Final = 0
_RECORD_LIMIT: Final = 16 * 1024
"""Bytes; the kernel writes at most 8 KiB for one record, and refuses a buffer that is too small for it."""
_BATCH: Final = 256
"""Records taken in one turn of the loop: a flood shall not hold up everything else."""

_TOLD_READ_EVERY: Final = 0.1
"""Seconds between two observations that the log was read to its end: a storm of faults needs one now and then."""

_PROMPTNESS: Final = 0.01
"""Seconds, assumed: a record that wakes this process is read within that time."""
_DRIFT: Final = 500e-6
"""The log's clock (local_clock) runs free, CLOCK_MONOTONIC is slewed by NTP: by 500 ppm at most (adjtimex(2))."""

_ESCAPE: Final = re.compile(rb"\\x([0-9a-f]{2})")


class KernelLine(msgspec.Struct, frozen=True):
    """One record of the kernel log."""

    sequence: int
    facility: int
    stamp: float
    """Seconds of the log's own clock."""
    fragment: bool
    """It may go on from the record before it."""
    text: str


def parse_record(record: bytes) -> KernelLine | None:
    """One read of /dev/kmsg, or None if it is no whole record. Lines after the first are its dictionary."""
    head, _, rest = record.partition(b";")
    fields = head.split(b",")
    text, newline, _ = rest.partition(b"\n")
    # More fields than four may come: `caller=T123` does where CONFIG_PRINTK_CALLER is set.
    if not newline or len(fields) < 4 or not all(field.isdigit() and len(field) < 20 for field in fields[:3]):
        return None
    level, sequence, microseconds = (int(field) for field in fields[:3])
    plain = _ESCAPE.sub(lambda escape: bytes([int(escape[1], 16)]), text)
    return KernelLine(
        sequence=sequence,
        facility=level >> 3,
        stamp=microseconds / 1e6,
        # 'c' marks a piece of a line; kernels of old mark the first one so, and the later ones '+'.
        fragment=fields[3] in (b"c", b"+"),
        text=printable(plain.decode(errors="replace")),
    )


@register
class KernelLogSensor(Sensor):
    """Emits Xid lines and lost GPUs from sequence number ``after`` + 1 on. Owns one descriptor; never writes to it.

    ``after`` None begins at the present end, -1 at the first record of this boot. What is gone from the ring by then
    is reported as Lost. ``facility``, ``marker`` (what comes before the driver's words) and ``read`` are for tests.
    """

    name: ClassVar[str] = Source.KERNEL_LOG.value

    def __init__(
        self,
        emit: Callable[[Evidence], None],
        *,
        after: int | None = None,
        path: Path = Path("/dev/kmsg"),
        facility: int = KERNEL_FACILITY,
        marker: str = "",
        read: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self._emit, self._facility, self._marker, self._read = emit, facility, marker, read
        self._position = after
        self._newest = -1
        self._caught_up = False
        self._overrun = False
        """The gap before the next record has been reported."""
        self._beginning = ""
        """An Xid line that is not complete yet."""
        self._lost_gpus = LostGpuLines()
        self._clock = _LogClock()
        self._whole_since = 0.0
        """Every record that was written from then on has been taken, or will be."""
        self._told_read = float("-inf")
        self._telling: asyncio.TimerHandle | None = None
        self.unreadable = 0
        """Records that were none."""
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if after is None:
                self._skip()
            self._whole_since = time.monotonic()
            asyncio.get_running_loop().add_reader(self._fd, self._drain)
        except OSError as error:
            self._give_up(f"{path}: {error.strerror}")
            return
        self._state = SensorState(present=True, detail=f"reading {path}")

    @classmethod
    def open(cls, setup: SensorSetup) -> Self:
        """See `Sensor`."""
        return cls(setup.emit, after=setup.kernel_log_after)

    def state(self) -> SensorState:
        """Whether the log is being read, and why not."""
        return self._state

    def position(self) -> tuple[str, int] | None:
        """Boot id and sequence number of the last record that was taken; None if the log is not being read."""
        if self._fd < 0:
            return None
        return boot_id(), -1 if self._position is None else self._position

    def observe(self, evidence: Evidence) -> None:
        """Tell that the log has been read to its end where that counts: what it does not tell of was not there."""
        if _wants_all(evidence.what) and self._fd >= 0 and self._telling is None:
            wait = self._told_read + _TOLD_READ_EVERY - time.monotonic()
            if wait > 0:
                self._telling = asyncio.get_running_loop().call_later(wait, self._tell_read)
            else:
                self._tell_read()

    def close(self) -> None:
        """Stop reading; safe to call twice."""
        if self._fd >= 0:
            self._give_up("closed")

    def _skip(self) -> None:
        # Not SEEK_END: that says nothing of where the end is, and a guard that restarts before the next record would
        # have no number to go on from. A ring of 1 MiB is read in some ten milliseconds.
        while True:
            try:
                record = self._read(self._fd, _RECORD_LIMIT)
            except BrokenPipeError:
                continue
            except BlockingIOError:
                self._caught_up = True
                return
            if (line := parse_record(record)) is not None:
                self._position = line.sequence
            elif not record:
                return

    def _drain(self) -> bool:
        """Take some records; return whether there was no further one."""
        for _ in range(_BATCH):
            try:
                record = self._read(self._fd, _RECORD_LIMIT)
            except BlockingIOError:
                self._reached_end()
                return True
            except BrokenPipeError:
                # The kernel wrote over records before they were read, and stands at the oldest one it has.
                self._lost()
                self._overrun = True
                continue
            except OSError as error:
                self._give_up(f"cannot be read any more: {error.strerror}")
                return False
            if not record:
                self._give_up("ended")
                return False
            self._take(record)
        return False

    def _take(self, record: bytes) -> None:
        line = parse_record(record)
        if line is None:
            self.unreadable += 1
            return
        self._newest = line.sequence
        if self._position is not None:
            if line.sequence <= self._position:
                return
            if line.sequence > self._position + 1 and not self._overrun:
                self._lost()
        self._position, self._overrun = line.sequence, False
        observed = time.monotonic()
        placed = self._clock.place(line.stamp, observed, fresh=self._caught_up)
        if line.facility != self._facility or not line.text.startswith(self._marker):
            return
        text = line.text.removeprefix(self._marker)
        found = parse_xid_line(text)
        if found is None and line.fragment:
            found = parse_xid_line(self._beginning + text)
        self._beginning = text if found is None and text.startswith("NVRM: Xid") else ""
        if found is not None:
            # No process, and no trust in the pid: the line of Xid 31 named the culprit of 23 of 130 memory faults
            # (`scripts/gpu-suite triage`), the one of 43 names the MPS server, and 45 names each client that is torn
            # down (H200, driver 580.159.04).
            self._say(found.xid, f"kmsg:{line.sequence}", observed, found.gpu, placed)
        elif (lost := self._lost_gpus.read(text, line.stamp)) is not None:
            self._say(lost[1], f"kmsg:{line.sequence}", observed, lost[0], placed)

    def _tell_read(self) -> None:
        """Read to the end and say so; later, if there is more than one turn of the event loop should read."""
        self._telling = None
        now = time.monotonic()
        if self._drain():
            self._told_read = now
            self._say(LogRead(self._whole_since), f"kmsg:read:{now:.6f}", now)
        elif self._fd >= 0:
            self._telling = asyncio.get_running_loop().call_later(_TOLD_READ_EVERY, self._tell_read)

    def _reached_end(self) -> None:
        if not self._caught_up and self._position is not None and 0 <= self._newest < self._position:
            # The number to go on from is beyond the newest record: it was never one of this boot.
            self._lost()
            self._position = self._newest
        self._caught_up = True

    def _lost(self) -> None:
        # How many records are gone could be told, but not how many of them were Xids.
        self._beginning = ""
        self._whole_since = time.monotonic()
        self._say(Lost(-1), f"kmsg:after:{self._position}", time.monotonic())

    def _say(
        self,
        what: Observation,
        serial: str,
        observed: float,
        gpu: str | None = None,
        placed: tuple[float | None, float] = (None, 0.0),
    ) -> None:
        happened, uncertainty = placed
        self._emit(
            Evidence(
                source=Source.KERNEL_LOG,
                observed_at=observed,
                what=what,
                happened_at=happened,
                uncertainty=uncertainty,
                gpu=gpu,
                trust=Trust.NONE,
                serial=serial,
            )
        )

    def _give_up(self, detail: str) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            if self._telling is not None:
                self._telling.cancel()
                self._telling = None
            os.close(self._fd)
            self._fd = -1
        self._state = SensorState(present=False, detail=detail)


def _wants_all(what: Observation) -> bool:
    """Return whether a verdict rests on what the log does not tell of: a fatal fault, work that faulted again."""
    return (isinstance(what, UvmFault) and what.fatal) or (isinstance(what, WorkRepeated) and what.outcome == "faulted")


class _LogClock:
    """Brings the log's clock onto CLOCK_MONOTONIC.

    Both begin at 0 with the machine and stand still in suspend, but drift apart. A record is printed before it is read,
    so the smallest lead of CLOCK_MONOTONIC seen lately, over records read as they came, is the distance of the two.
    """

    def __init__(self) -> None:
        self._lead: float | None = None
        self._measured = 0.0

    def place(self, stamp: float, observed: float, *, fresh: bool) -> tuple[float, float]:
        """When a record with ``stamp`` was printed, and by how much that may be off."""
        lead = observed - stamp
        age = abs(observed - self._measured)
        if fresh and (self._lead is None or lead < self._lead + _DRIFT * age):
            self._lead, self._measured, age = lead, observed, 0.0
        if self._lead is None:
            # Read from the ring, and none was seen coming yet: all that is known is how fast the clocks can part.
            return min(stamp, observed), _PROMPTNESS + _DRIFT * stamp
        return min(stamp + self._lead, observed), _PROMPTNESS + _DRIFT * age
