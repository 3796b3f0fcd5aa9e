"""The judgement on a lane: from its daemon's word, what clients get, and what it has to recover from.

A server takes its time to say that it recovers: a client that comes meanwhile is accepted, and its first context fails
with error 46 (cudaErrorDevicesUnavailable). Seen on two H100s, 580.159.04: the first newcomer after a lone client with
managed memory had been killed in its work, 0.3 s after it; and one that came 3 s after a memory fault on the other GPU
of its domain. So newcomers wait while a lane has, or may have, something to recover from.
"""

import re
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from mpsguard.guard import daemon_log
from mpsguard.guard.lanes import lane_state, server_watch
from mpsguard.guard.lanes.lane_spec import LaneSpec
from mpsguard.guard.lanes.lane_state import LaneJudgement
from mpsguard.guard.lanes.server_watch import LogHint
from mpsguard.guard.lanes.service_watch import ServiceWatch
from mpsguard.guard.model import LaneState, Notify, Server

QUIET: Final = 0.5
"""Seconds after the end of a lane's last client, other than by exit status 0, in which a fault of the work that it has
left shows: the server notices one after 0.15 s (H200)."""

HELD_UP: Final = 2 * QUIET
"""Seconds that such ends hold up one newcomer at most, however many there are: a stranger's programs may crash."""

UNSAID: Final = 10.0
"""Seconds in which the server has said that it is in a fault that was seen: 3 s where clients of it were stopped
(H200). Beyond that, the sign was of something else."""

UNHEARD: Final = 60.0
"""Seconds for which a sign that the server has said nothing of stands for all that follow: a stranger's program that is
a client may fault outside of MPS, again and again, and newcomers would wait without end."""

BEFORE: Final = 2.0
"""Seconds by which the server's word may be older than the sign: the kernel log is not the first to know."""

_DEVICES: Final = 64
"""Devices that are awaited; a server has 16 at most."""

_TO_BE_RESET: Final = re.compile(r"(?:Volta MPS(?: Server)?: )?The following devices\b", re.ASCII)
_RESET: Final = re.compile(
    r"(?:Volta MPS(?: Server)?: )?(?:Destroy|Creating) server context on device (\d{1,3})\b", re.ASCII
)


class RecoveryRecord(msgspec.Struct, frozen=True):
    """What is known of a recovery; times are of the monotonic clock."""

    left_badly: float | None = None
    """When a last client of the lane ended, other than by exit status 0."""
    sign: float | None = None
    """When a sensor saw a fatal fault of the lane's work; see `with_sign`."""
    said: float | None = None
    """When the server last said that it is in a fault."""
    devices: frozenset[int] = frozenset()
    """Devices that the server still has to reset, by its log."""
    listed: float = 0.0
    """When it named them."""


def recovering(record: RecoveryRecord, now: float) -> str:
    """Return why a lane is not ready for newcomers although its server says ACTIVE; "" if nothing says so."""
    if unheeded(record, now) is not None:
        return "a fault was seen that the server has not dealt with"
    if record.devices and now - record.listed < UNSAID:
        return f"the server has yet to reset device {', '.join(map(str, sorted(record.devices)))}"
    return ""


def unheeded(record: RecoveryRecord, now: float) -> float | None:
    """Return when a fault was seen that the server has said nothing of; None without any, or after UNSAID."""
    sign = record.sign
    return sign if sign is not None and now - sign < UNSAID and _is_unsaid(record, sign) else None


def with_sign(record: RecoveryRecord, now: float) -> RecoveryRecord:
    """Return the record with a fatal fault that is seen now; as it is where an earlier one stands for this one."""
    if record.sign is not None and now - record.sign < UNHEARD and _is_unsaid(record, record.sign):
        return record
    return msgspec.structs.replace(record, sign=now)


def _is_unsaid(record: RecoveryRecord, sign: float) -> bool:
    return record.said is None or record.said < sign - BEFORE


def quiet_at(record: RecoveryRecord, came: float) -> float:
    """Return when a client that came then may be passed on, as far as others' ends go."""
    return 0.0 if record.left_badly is None else min(record.left_badly + QUIET, came + HELD_UP)


class Recovery:
    """Owns the record of what one lane has to recover from."""

    def __init__(self, changed: Callable[[], None], believes: Callable[[], bool]) -> None:
        """Create it.

        Args:
            changed: called when the lane is to be judged anew.
            believes: whether no stranger can write the server's log.
        """
        self.record = RecoveryRecord()
        self._changed = changed
        self._believes = believes
        self._lists = False
        """Whether the server's next lines are numbers of devices."""

    def begin(self) -> None:
        """Forget all: there is another control daemon, or no server."""
        self.record = RecoveryRecord(left_badly=self.record.left_badly)

    def client_left_badly(self) -> None:
        """Say that the last client ended other than by exit status 0: its work may go on, and fault."""
        self._set(left_badly=time.monotonic())

    def fault_seen(self) -> None:
        """Say that a sensor saw a fatal fault of a client of this lane, or of its server."""
        self.record = with_sign(self.record, time.monotonic())
        self._changed()

    def server_says_fault(self) -> None:
        """Say that the server has said, asked or in its log, that it is in a fault."""
        self._set(said=time.monotonic())

    def hear(self, line: str) -> None:
        """Take in a line of the server's log."""
        found = server_watch.hint(line)
        if found is not None and found[1] is LogHint.FAULT_BEGINS:
            self.server_says_fault()
        parsed = daemon_log.parse_line(line)
        if parsed is not None and self._believes():
            self._hear_devices(parsed.text)

    def _hear_devices(self, text: str) -> None:
        if self._lists and text.isascii() and text.isdigit() and len(text) < len("1000"):
            if len(self.record.devices) < _DEVICES:
                self._set(devices=self.record.devices | {int(text)})
            return
        self._lists = _TO_BE_RESET.match(text) is not None
        if self._lists:
            self._set(devices=frozenset(), listed=time.monotonic())
        elif (found := _RESET.match(text)) is not None:
            self._set(devices=self.record.devices - {int(found[1])})

    def why(self) -> str:
        """See `recovering`."""
        return recovering(self.record, time.monotonic())

    def unheeded(self) -> float | None:
        """See the function."""
        return unheeded(self.record, time.monotonic())

    def quiet_at(self, came: float) -> float:
        """See the function."""
        return quiet_at(self.record, came)

    def _set(self, **changes: Any) -> None:
        self.record = msgspec.structs.replace(self.record, **changes)


class LaneJudge:
    """Owns what is known of one lane's service and recovery."""

    def __init__(self, spec: LaneSpec, notice: Notify, prompt: Callable[[], None], changed: Callable[[], None]) -> None:
        """Create it.

        Args:
            spec: the lane's.
            notice: takes events.
            prompt: has the control daemon asked.
            changed: called when the lane is to be judged anew.
        """
        self.service = ServiceWatch(spec.log_directory, notice, prompt, multiuser=spec.multiuser)
        self.recovery = Recovery(changed, self.service.believes_logs)

    def begin(self, *, adopted: bool) -> None:
        """Forget the control daemon before this one, which was found (``adopted``) or started."""
        self.service.begin(adopted=adopted)
        self.recovery.begin()

    def judge(self, said: LaneState, reason: str, servers: tuple[Server, ...]) -> LaneJudgement:
        """Return state, reason and doubt of the lane, given what its control daemon said last."""
        if not servers:
            self.recovery.begin()
        elif said is LaneState.FAULT:
            self.recovery.server_says_fault()
        recovering = self.recovery.why()
        self.service.look(servers, excused=bool(recovering))
        return lane_state.judged(said, reason, self.service.verdict(), self.service.holding(), recovering)
