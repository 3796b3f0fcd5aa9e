"""Where the simulated server keeps its work: in a session of the vault, or nowhere."""

from collections.abc import Sequence
from typing import Protocol

from mpsguard import client


class Keeping(Protocol):
    """The part of `mpsguard.client.Session` that the server needs; its methods are explained there."""

    def create(self, name: str, chunks: Sequence[client.Chunk]) -> object:
        """Give memory away for keeping."""

    def open(self, name: str) -> client.Region:
        """What was kept; UnknownRegionError if nothing of that name was."""

    def ready(self) -> bool:
        """Returns in the process that is to work."""

    def state(self) -> bytes | None:
        """The newest state."""

    def publish(self, state: bytes, /) -> int:
        """Make it the newest; its number."""

    def close(self, *, in_order: bool = True) -> None:
        """Give the session up."""


class Alone:
    """No session: all memory and state end with their process."""

    def create(self, name: str, chunks: Sequence[client.Chunk]) -> None:
        """Do nothing: the memory stays with its process."""

    def open(self, name: str) -> client.Region:
        """Raise UnknownRegionError: nothing is ever kept."""
        raise client.UnknownRegionError(name)

    def ready(self) -> bool:
        """At once."""
        return True

    def state(self) -> None:
        """Return None: there is no earlier process."""

    def publish(self, _state: bytes, /) -> int:
        """Discard the state."""
        return 0

    def close(self, *, in_order: bool = True) -> None:
        """Do nothing: there is no session."""
