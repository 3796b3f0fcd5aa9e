"""Messages of the command ``clients``."""

import msgspec

from mpsguard.model import Client
from mpsguard.pods import ClientPod


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


class ClientList(msgspec.Struct, frozen=True):
    """The clients alive, oldest first, and how each is watched and in which pod it is, in the same order."""

    clients: tuple[Client, ...]
    watches: tuple[Watch, ...]
    pods: tuple[ClientPod | None, ...] = ()
    """None for a client in no pod that the guard knows; empty from a guard of an earlier version."""

    def pod_of(self, number: int) -> ClientPod | None:
        """Return the pod of the client with that place in `clients`."""
        return self.pods[number] if number < len(self.pods) else None
