"""The nouns of mpsguard as frozen types; imports nothing of the project.

The glossary of docs/concepts/architecture.md defines the words.
Times are UNIX seconds (``time.time()``) unless a name says otherwise.
"""

from enum import StrEnum
from typing import Final

import msgspec


class Credentials(msgspec.Struct, frozen=True):
    """Who sent a message, as the kernel vouches for it (``struct ucred``)."""

    pid: int
    uid: int
    gid: int


class ProcessKey(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """One process for all time: a pid alone is recycled, a pid with its start time is not.

    ``start_ticks`` is field 22 of ``/proc/PID/stat``: clock ticks after boot.
    """

    pid: int
    start_ticks: int
    execs: int = 0
    """How often it has executed another program while it was a client: each time the CUDA process ended, and what
    comes later under the same pid and start time is another one."""

    @property
    def process(self) -> "ProcessKey":
        """The process as /proc knows it, whatever program it executes."""
        return ProcessKey(self.pid, self.start_ticks)

    def __str__(self) -> str:
        return f"{self.pid}.{self.start_ticks}" + (f".{self.execs}" if self.execs else "")


class Client(msgspec.Struct, frozen=True):
    """A process that came through a public pipe directory, or was found on a lane when the guard started."""

    process: ProcessKey
    uid: int
    gid: int
    command: str
    """Command line, made printable and cut; the client's own words, never to be trusted."""
    cgroup: str
    container: str | None
    """Container id taken from the cgroup path, if it has one."""
    gpus: str | None
    """``CUDA_VISIBLE_DEVICES`` of the client's environment at start, if set."""
    domain: str
    lane: str
    connected_at: float
    adopted: bool = False
    """True if this guard did not see the client come but found it on an adopted lane."""
    unbrokered: bool = False
    """True if it came to the lane past this guard, while it served."""
    pipe_directory: str | None = None
    """``CUDA_MPS_PIPE_DIRECTORY`` of the client's environment at start, if set."""
    program: str | None = None
    """``MPSGUARD_PROGRAM`` of the client's environment at start, if set; cut."""


class LaneState(StrEnum):
    """What the evidence says of a lane."""

    INITIALIZING = "INITIALIZING"
    """The control daemon or a server is coming up."""
    ACTIVE = "ACTIVE"
    """The control daemon answers and no server of it is in another state."""
    FAULT = "FAULT"
    """A server is tearing down after a fatal GPU error: a client that came now would get error 807."""
    DOWN = "DOWN"
    """There is no control daemon."""
    UNKNOWN = "UNKNOWN"
    """The control daemon lives but did not answer in time, or answered what nobody understands."""


TOLD_TO_QUIT: Final = "told to quit"
"""Why a lane is DOWN that was told to quit: its end is no failure."""


class Server(msgspec.Struct, frozen=True):
    """One MPS server of a lane."""

    process: ProcessKey
    state: str
    """The vendor's word: ACTIVE, FAULT, INITIALIZING, or what a later driver may add."""


class LaneSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a control daemon that are lost when it dies, and that the guard keeps and replays.

    They are the vendor's ``set_default_*`` commands; what is None (or absent) is left at the vendor's default.
    """

    active_thread_percentage: float | None = None
    """Share of the SMs that each client may use: above 0, at most 100."""
    client_priority: int | None = None
    """0: normal; 1: below normal."""
    pinned_device_memory_limit: dict[str, str] = msgspec.field(default_factory=dict)
    """Device ordinal or UUID to a limit such as ``"8G"`` or ``"512M"``."""


class LaneReport(msgspec.Struct, frozen=True):
    """A lane at one moment: its state and the evidence for it."""

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
    """The restart limit was reached; no further start before the window has passed."""
    settings: LaneSettings = LaneSettings()
