"""What the guard knows of clients, lanes and servers, as frozen types.

docs/concepts/architecture.md explains the terms. Times are UNIX seconds (``time.time()``) unless stated otherwise.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from mpsguard.linux.identity import ProcessKey, UserKey

Notify = Callable[[str, Mapping[str, Any]], None]
"""Publishes an event by its kind and data, for a part that knows no event stream."""


class Client(msgspec.Struct, frozen=True):
    """A process that connected through a public pipe directory, or was found on a lane."""

    process: ProcessKey
    uid: int
    gid: int
    command: str
    """Command line, made printable and cut; it is untrusted."""
    cgroup: str
    container: str | None
    """Container id from the cgroup path, if it has one."""
    gpus: str | None
    """``CUDA_VISIBLE_DEVICES`` of the client's environment at start, if set."""
    domain: str
    lane: str
    connected_at: float
    adopted: bool = False
    """Whether this guard found the client on an adopted lane."""
    unbrokered: bool = False
    """Whether it connected to the lane without this guard, while the guard was running."""
    pipe_directory: str | None = None
    """``CUDA_MPS_PIPE_DIRECTORY`` of the client's environment at start, if set."""
    program: str | None = None
    """``MPSGUARD_PROGRAM`` of the client's environment at start, if set; cut."""
    service_class: str | None = None
    """Name of its service class; None if it has none, or came before this guard did."""
    sm_share: float | None = None
    """Percent of the SMs that its server showed when it was handed over; None if the guard set nothing."""
    priority: int | None = None
    """Likewise: 0 normal, 1 below normal."""
    memory_limits: tuple[str, ...] = ()
    """Likewise: GPU and limit, such as ``"0=8G"``."""
    container_root: UserKey | None = None
    """Its user, if it has uid 0 and is not root of this machine."""
    second_driver: str | None = None
    """``MPSGUARD_SECOND_DRIVER`` of the client's environment at start, if it asks for a second driver; untrusted."""
    second_lane: str | None = None
    """The lane that its second driver is connected to, while its work is on ``lane``. It is one client all the same."""
    lane_before: str | None = None
    """The lane that it was on before it went over, or moved, to ``lane``; it may hold that lane's server still."""
    went_over_at: float | None = None
    """When it went over."""
    moved_at: float | None = None
    """When it moved, without a fault (docs/concepts/moves.md)."""

    @property
    def user(self) -> UserKey:
        """Return the user that it counts for."""
        return UserKey(self.uid) if self.container_root is None else self.container_root

    @property
    def lanes(self) -> frozenset[str]:
        """Return the lanes that list it: its own, that of its second driver, and the one that it has left."""
        return frozenset(each for each in (self.lane, self.second_lane, self.lane_before) if each is not None)


class Watched(StrEnum):
    """Whether a memory fault of a client would be seen in its own address space."""

    YES = "yes"
    NO = "no"
    """It has something that cannot be watched."""
    NOT_YET = "not yet"
    """It has nothing so far that could be watched."""
    BY_NONE = "-"
    """There is no sensor that could watch it: the guard's health says what that means."""

    @classmethod
    def of(cls, *, watched: bool, unwatchable: bool, sensor: bool) -> "Watched":
        """Return it from what the sensor says; ``sensor``: whether there is one."""
        if not sensor:
            return cls.BY_NONE
        return cls.YES if watched else cls.NO if unwatchable else cls.NOT_YET


class LaneState(StrEnum):
    """The state of a lane."""

    INITIALIZING = "INITIALIZING"
    """The control daemon or a server is starting."""
    ACTIVE = "ACTIVE"
    """The control daemon answers, and none of its servers is in another state."""
    FAULT = "FAULT"
    """A server is tearing down after a fatal GPU error: a client that connects now would get error 807."""
    RECOVERING = "RECOVERING"
    """A fault was seen, or a device is yet to be reset, though the server says that it is well: a client that connects
    now might get error 46."""
    FAILING = "FAILING"
    """The control daemon lives, but clients are not served: they are turned away, lose their servers, or wait."""
    DOWN = "DOWN"
    """There is no control daemon."""
    UNKNOWN = "UNKNOWN"
    """The control daemon lives, but did not answer in time, or its answer is not understood."""


TOLD_TO_QUIT: Final = "told to quit"
"""The reason of a lane that is DOWN after a `quit` command: its end is no failure."""


class Server(msgspec.Struct, frozen=True):
    """One MPS server of a lane."""

    process: ProcessKey
    state: str
    """The vendor's term: ACTIVE, FAULT, INITIALIZING, or one of a later driver."""


class LaneSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a control daemon, which are lost when it ends; the guard stores and replays them.

    They are the vendor's ``set_default_*`` commands; a setting that is None (or absent) has the vendor's default.
    """

    active_thread_percentage: float | None = None
    """Share of the SMs that each client may use: above 0, at most 100."""
    client_priority: int | None = None
    """0: normal; 1: below normal."""
    pinned_device_memory_limit: dict[str, str] = msgspec.field(default_factory=dict)
    """Device ordinal or UUID to a limit such as ``"8G"`` or ``"512M"``."""


class LaneReport(msgspec.Struct, frozen=True):
    """The state of a lane at one time, and the reason for it."""

    name: str
    domain: str
    state: LaneState
    reason: str
    since: float
    pipe_directory: str
    log_directory: str
    control: ProcessKey | None = None
    servers: tuple[Server, ...] = ()
    adopted: bool = False
    starts: int = 0
    """How often this guard started the control daemon."""
    flapping: bool = False
    """Whether the restart limit was reached: then there is no further start before the window has passed."""
    fault_asked: float | None = None
    """CLOCK_MONOTONIC seconds when the last answer that told of a server in fault was asked for."""
    doubt: str = ""
    """Why clients of one user are not served, if no other user's failures say so: it may be that user's own doing."""
    settings: LaneSettings = LaneSettings()
    """What is replayed at each start, as it was asked for."""
    unasked: dict[str, str] = {}
    """Defaults that were set past the guard or before it, as the control daemon shows them: they are not replayed."""


SEEN_WITHIN: Final = 1.0
"""Seconds to wait for the end of a process that gets one signal and no SIGKILL after it."""

KILLED_WITHIN: Final = 5.0
"""Seconds for SIGKILL to end a process; in an uninterruptible driver call it takes longer."""


class Work(StrEnum):
    """The state of a client's GPU work after an attempt to end it."""

    ENDED = "ended"
    """The control daemon answered 0."""
    NONE = "none"
    """No server lists the process: it has no context now."""
    GONE = "gone"
    """The process had ended by itself before the command. Its kernels may still run."""
    REFUSED = "refused"
    """The control daemon did not answer 0: the work may still run."""
    STOPPED = "stopped"
    """The process is stopped, and the control daemon was not asked: the work may still run."""
    UNKNOWN = "unknown"
    """No control daemon answered in time: the work may still run, or the hanging command may end it later."""

    @property
    def in_flight(self) -> bool:
        """Whether kernels of the living process may be running: then ending it may end its neighbours."""
        return self in (Work.REFUSED, Work.STOPPED, Work.UNKNOWN)


class Lifeline(msgspec.Struct, frozen=True):
    """A held lifeline: the address space of a client that has ended."""

    pid: int
    start_ticks: int
    since: float
    """CLOCK_MONOTONIC seconds."""
    until: float
    """When its time is over."""
    beyond: bool = False
    """Whether it is held even longer, until the GPUs are seen idle or an operator releases it."""
    overdue: bool = False
    """Whether it is held beyond its time now."""
    execs: int = 0
    """See `ProcessKey`."""
    uid: int | None = None
    """The client's user; None if an earlier guard did not record it."""

    @property
    def process(self) -> ProcessKey:
        """The ended client."""
        return ProcessKey(self.pid, self.start_ticks, self.execs)
