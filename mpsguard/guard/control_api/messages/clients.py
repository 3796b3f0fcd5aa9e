"""Messages about clients: ``clients``, ``move_client``, ``terminate``, ``end_work``, ``lifelines``, ``pods``."""

from typing import Annotated, Final, Literal

import msgspec

from mpsguard.guard.model import Client, Lifeline, Watched, Work
from mpsguard.guard.pods import MAX_PODS, ClientPod, Pod
from mpsguard.linux.identity import ProcessKey

SIGNALS: Final = ("TERM", "INT", "HUP", "QUIT", "KILL")
ANSWER_WITHIN: Final = 5.0
"""Seconds the control daemon gets where the asker says nothing."""
MAX_WAIT: Final = 300.0
"""Seconds; more than any control daemon needs."""


class ClientsArguments(msgspec.Struct):
    """Which clients."""

    domain: str | None = None


class Watch(msgspec.Struct, frozen=True):
    """Whether a fault of a client would be seen in its own address space."""

    pid: int
    watched: bool
    reason: str
    """Why it is not; "" if it is."""
    unwatchable: bool = False
    """It has something that cannot be watched: not merely nothing yet."""
    sensor: bool = True
    """Whether there is a sensor that could watch it."""

    @property
    def state(self) -> Watched:
        """Return the same as one word."""
        return Watched.of(watched=self.watched, unwatchable=self.unwatchable, sensor=self.sensor)


class ClientMemory(msgspec.Struct, frozen=True):
    """The GPU memory of a client, as NVML has it."""

    bytes: int
    """Of all GPUs together."""
    exceeds: bool = False
    """Whether it has, or had lately, more of a GPU than it was promised."""


class Survival(msgspec.Struct, frozen=True):
    """Whether a client with a second driver would live through an SM fault of its lane, mostly by its own word."""

    survives: Literal["yes", "no", "unknown", "repeats alone", "went over", "moved"]
    """``yes``: if nothing of it changes, and it is idle then. ``repeats alone``: one has hit it, and its work in
    flight is done again outside of MPS. ``went over``, ``moved``: of guards for which a program goes over once."""
    reason: str
    """Why not (docs/reference/second-driver.md); "" unless it is ``no``."""

    def __str__(self) -> str:
        return f"{self.survives}: {self.reason}" if self.reason else self.survives


class ClientList(msgspec.Struct, frozen=True):
    """The clients alive, oldest first, and of each how it is watched, its pod and its memory, in the same order."""

    clients: tuple[Client, ...]
    watches: tuple[Watch, ...]
    pods: tuple[ClientPod | None, ...] = ()
    """None for a client in no pod that the guard knows; empty from a guard of an earlier version."""

    memory: tuple[ClientMemory | None, ...] = ()
    """None for a client of which it is not known; empty from a guard of an earlier version."""

    survival: tuple[Survival | None, ...] = ()
    """None for a client without a second driver; empty from a guard of an earlier version."""

    def survival_of(self, number: int) -> Survival | None:
        """Return whether the client with that place in `clients` would live through a fault."""
        return self.survival[number] if number < len(self.survival) else None

    def memory_of(self, number: int) -> ClientMemory | None:
        """Return the memory of the client with that place in `clients`."""
        return self.memory[number] if number < len(self.memory) else None

    def pod_of(self, number: int) -> ClientPod | None:
        """Return the pod of the client with that place in `clients`."""
        return self.pods[number] if number < len(self.pods) else None


class MoveClientArguments(msgspec.Struct):
    """Which client moves, and where to."""

    pid: int
    lane: str | None = None
    """None: the other lane; for another share, its own."""
    share: Annotated[float, msgspec.Meta(gt=0, le=100)] | None = None
    """Percent of the SMs; None: as it has."""
    domain: str | None = None
    let_go: bool | None = None
    """Whether the old lane is to let go of it. None: it is told to end the context, but on the same lane, where that
    would end both. True: after that, the program shuts its old connections down, which was not tried on a GPU."""


class ClientMoved(msgspec.Struct, frozen=True):
    """A client goes on elsewhere, or with another share."""

    pid: int
    lane: str
    was: str
    share: float | None
    """Percent of the SMs; None: the guard has set none."""
    prepared: float
    """Seconds in which its second driver was made, while it ran; its own word."""
    paused: float
    """Seconds for which it stood still; its own word."""
    kept: str
    """Why the old lane has its old context still; "" if it has not."""


class TerminateArguments(msgspec.Struct):
    """The process to end, and what follows; times in seconds."""

    pid: int
    signal: str | None = None
    domain: str | None = None
    grace: float | None = None
    """After the signal: until SIGKILL."""
    force: bool = False
    answer_within: float = ANSWER_WITHIN


class TerminateResult(msgspec.Struct, frozen=True):
    """What came of it."""

    pid: int
    server: int | None
    answer: str
    """The control daemon's own words; "0" is success. Or why it said nothing."""
    terminated: bool
    """The work has ended, or was left to the lifeline of a stopped process that has been killed."""
    signalled: bool
    work: Work
    signals: tuple[str, ...]
    ended: bool
    """Whether the process has ended."""


class EndWorkArguments(msgspec.Struct):
    """The processes, by the pids of the asker's pid namespace, and the inode of that (for `mpsguard run`)."""

    processes: tuple[ProcessKey, ...]
    pid_namespace: int
    within: float
    """Seconds the control daemon gets."""


class WorkEnded(msgspec.Struct, frozen=True):
    """What became of one client's work; ``process`` is named as the asker named it."""

    process: ProcessKey
    work: Work
    answer: str


class EndWorkResult(msgspec.Struct, frozen=True):
    """One entry for each of the processes that is a client; the others are no clients of this guard."""

    clients: tuple[WorkEnded, ...]


class LifelinesArguments(msgspec.Struct):
    """The process with the lifeline to let go of, if any."""

    release: int | None = None


class LifelineList(msgspec.Struct, frozen=True):
    """What is held, and when that was so."""

    now: float
    """CLOCK_MONOTONIC seconds, the clock of the times in it."""
    lifelines: tuple[Lifeline, ...]


class PodsArguments(msgspec.Struct):
    """All pods of this node, told by the reporter; they take the place of those told before."""

    pods: Annotated[tuple[Pod, ...], msgspec.Meta(max_length=MAX_PODS)]


class PodsNoted(msgspec.Struct, frozen=True):
    """How many pods the guard knows now."""

    count: int
