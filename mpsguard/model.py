"""The basic terms of mpsguard as frozen types; this module imports nothing of the project.

docs/concepts/architecture.md explains the terms. Times are UNIX seconds (``time.time()``) unless stated otherwise.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

Notify = Callable[[str, Mapping[str, Any]], None]
"""Publishes an event by its kind and data, for a part that knows no event stream."""


class Credentials(msgspec.Struct, frozen=True):
    """The sender of a message, verified by the kernel (``struct ucred``)."""

    pid: int
    uid: int
    gid: int


class ProcessKey(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """The unique identity of a process: a pid is reused, a pid with its start time is not.

    ``start_ticks`` is field 22 of ``/proc/PID/stat``: clock ticks after boot.
    """

    pid: int
    start_ticks: int
    execs: int = 0
    """How often it has executed another program while it was a client. Each time, its CUDA process ended; a later
    client with the same pid and start time is a different one."""

    @property
    def process(self) -> "ProcessKey":
        """The identity of the process in /proc, regardless of the program that it executes."""
        return ProcessKey(self.pid, self.start_ticks)

    def __str__(self) -> str:
        return f"{self.pid}.{self.start_ticks}" + (f".{self.execs}" if self.execs else "")


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


class LaneState(StrEnum):
    """The state of a lane."""

    INITIALIZING = "INITIALIZING"
    """The control daemon or a server is starting."""
    ACTIVE = "ACTIVE"
    """The control daemon answers, and none of its servers is in another state."""
    FAULT = "FAULT"
    """A server is tearing down after a fatal GPU error: a client that connects now would get error 807."""
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
    settings: LaneSettings = LaneSettings()
