"""A region as an application holds it."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from mpsguard.linux.closing import Closing
from mpsguard.vault.wire.region import RegionLayout
from mpsguard.vault.wire.region import RegionRecord as Description


class Chunk(NamedTuple):
    """A piece of memory to give to the vault: an exported handle or memfd, and its size in bytes."""

    fd: int
    size: int


class RegionRequests(ABC):
    """What a region asks of its session."""

    @abstractmethod
    def seal(self, name: str, chunks: tuple[int, ...] | None = None) -> Description:
        """See `Region.seal`."""

    @abstractmethod
    def set_metadata(self, name: str, metadata: bytes, expected_version: int | None = None) -> Description:
        """See `Region.set_metadata`."""

    @abstractmethod
    def forget(self, name: str) -> None:
        """See `Region.close`."""

    @abstractmethod
    def announce(self, name: str, whole: int, offset: int, size: int) -> "Writing":
        """See `Region.writing`; ``whole``: bytes of the region."""


class Writing:
    """A write that was announced. As a context manager it also keeps cuts away until the block is left."""

    def __init__(self, begins: Callable[[], None] | None = None, ends: Callable[[], None] | None = None) -> None:
        self._begins = begins
        self._ends = ends

    def __enter__(self) -> None:
        if self._begins is not None:
            self._begins()

    def __exit__(self, *_: object) -> None:
        if self._ends is not None:
            self._ends()


class Region(Closing):
    """A region of a session; an opened region owns its descriptors until `close`."""

    def __init__(self, session: RegionRequests, description: Description, fds: tuple[int, ...], *, owned: bool) -> None:
        self._session = session
        self._description = description
        self._fds = fds
        self._owned = owned

    @property
    def name(self) -> str:
        """Name in the session."""
        return self._description.name

    @property
    def id(self) -> int:
        """Number of the region in its vault, never given to another one."""
        return self._description.id

    @property
    def layout(self) -> RegionLayout:
        """Sizes (bytes), address and GPU; the same for every process that maps it."""
        return self._description.layout

    @property
    def generation(self) -> int:
        """Generation of the session when the region was created."""
        return self._description.generation

    @property
    def metadata(self) -> bytes:
        """The metadata when the region was opened, or as last set here."""
        return self._description.metadata

    @property
    def metadata_version(self) -> int:
        """Incremented whenever the metadata are replaced."""
        return self._description.metadata_version

    @property
    def sealed(self) -> tuple[int, ...]:
        """Indices of the chunks that were sealed when the region was opened, or have been sealed here."""
        return self._description.sealed

    @property
    def fds(self) -> tuple[int, ...]:
        """One descriptor for each chunk, in order. For a region created here: the caller's own descriptors."""
        return self._fds

    def seal(self, chunks: tuple[int, ...] | None = None) -> None:
        """Declare chunks (by index; None: all) final: a promise to readers, which the vault does not enforce.

        Raises:
            StaleGenerationError: this writer was fenced off.
            NotPermittedError: this session is a reader's.
        """
        self._description = self._session.seal(self.name, chunks)

    def set_metadata(self, metadata: bytes, expected_version: int | None = None) -> None:
        """Replace the metadata; with ``expected_version`` only if they are at that version.

        Raises:
            StaleGenerationError: the metadata are at another version.
            SealedError: the whole region is sealed.
            TooLargeError: more than 16 KiB (or the vault's own limit).
        """
        self._description = self._session.set_metadata(self.name, metadata, expected_version)

    def writing(self, offset: int = 0, size: int | None = None) -> Writing:
        """Announce a write to ``size`` bytes (None: all that follow) from ``offset`` on, before it is made.

        Returns at once unless a checkpoint is under way that has not copied these bytes yet; see `MemoryObserver`.
        The result may be used as a context manager around the write, in a program of several threads.

        Raises:
            ValueError: they do not lie in the region.
        """
        whole = self.layout.size
        return self._session.announce(self.name, whole, offset, whole - offset if size is None else size)

    def close(self) -> None:
        """Tell the vault that this process no longer maps the region, and close the descriptors of an opened region.

        Safe to call twice. If the vault is gone, it learns of this when the process ends.
        """
        if self._owned:
            for fd in self._fds:
                os.close(fd)
            self._fds = ()
            self._owned = False
            self._session.forget(self.name)
