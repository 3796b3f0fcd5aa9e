"""Messages of the command ``clients``."""

from typing import Literal

import msgspec

from mpsguard.guard.model import Client, Watched
from mpsguard.guard.pods import ClientPod


class Arguments(msgspec.Struct):
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

    survives: Literal["yes", "no", "unknown", "repeats alone", "went over"]
    """``yes``: if nothing of it changes, and it is idle then. ``repeats alone``: one has hit it, and its work in
    flight is done again outside of MPS. ``went over``: it has lived through one."""
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
