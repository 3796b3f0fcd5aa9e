"""What checkpoints need of their session: `mpsguard.vault.client.session.Session`, which they must not import."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from mpsguard.vault.client.region import Chunk, Region
from mpsguard.vault.client.session_memory import SessionMemory
from mpsguard.vault.wire.region import LeaseRole, RegionRecord
from mpsguard.vault.wire.session_page import SessionPage
from mpsguard.vault.wire.state_buffer import State


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
    def page(self) -> SessionPage:
        """See `Session.page`."""

    @property
    def owner(self) -> int:
        """Uid of the session's owner."""

    @property
    def socket(self) -> str:
        """Path of the vault's socket."""

    @property
    def memory(self) -> SessionMemory:
        """See `Session.memory`."""

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
