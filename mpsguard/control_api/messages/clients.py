"""Messages of the command ``clients``."""

import msgspec

from mpsguard.model import Client


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
    """The clients alive, oldest first, and how each is watched, in the same order."""

    clients: tuple[Client, ...]
    watches: tuple[Watch, ...]
