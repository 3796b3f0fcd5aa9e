"""What checkpoints need of their session: `mpsguard.client.session.Session`, which they must not import."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from mpsguard.client.region import Chunk, Region
from mpsguard.vault.region import LeaseRole, RegionRecord
from mpsguard.vault.state_buffer import State


class MappedMemory(Protocol):
    """A region that this process has mapped: `mpsguard.client.mapped.Memory`."""

    va: int
    size: int
    backend: Any


class WritingSession(Protocol):
    """The writer's session."""

    name: str

    @property
    def role(self) -> LeaseRole:
        """See `Session.role`."""

    @property
    def generation(self) -> int:
        """See `Session.generation`."""

    @property
    def owner(self) -> int:
        """Uid of the session's owner."""

    @property
    def socket(self) -> str:
        """Path of the vault's socket."""

    @property
    def mapped(self) -> Mapping[str, MappedMemory]:
        """The regions that this process has mapped, by name."""

    def names(self) -> Iterator[str]:
        """See `Session.names`."""

    def describe(self, name: str) -> RegionRecord:
        """See `Session.describe`."""

    def open(self, name: str) -> Region:
        """See `Session.open`."""

    def open_or_create(self, name: str, make: Callable[[], Sequence[Chunk]]) -> Region:
        """See `Session.open_or_create`."""

    def latest(self) -> State | None:
        """See `Session.latest`."""

    def hand_over(self) -> None:
        """See `Session.hand_over`."""
