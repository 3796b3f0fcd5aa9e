"""What the simulated server leaves its work with: a session of the vault, or nobody."""

from collections.abc import Sequence
from typing import Protocol

from mpsguard import client


class Keeping(Protocol):
    """What the server needs of `mpsguard.client.Session`, which says what each is for."""

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
    """No session: whatever a process has is over with it."""

    def create(self, name: str, chunks: Sequence[client.Chunk]) -> None:
        """It stays with the process that made it."""

    def open(self, name: str) -> client.Region:
        """There is never anything."""
        raise client.UnknownRegionError(name)

    def ready(self) -> bool:
        """At once."""
        return True

    def state(self) -> None:
        """Nobody was here before."""

    def publish(self, _state: bytes, /) -> int:
        """Nobody takes it."""
        return 0

    def close(self, *, in_order: bool = True) -> None:
        """There is nothing to give up."""
