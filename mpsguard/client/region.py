"""A region as an application holds it."""

import os
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from mpsguard.vault.region import Layout
from mpsguard.vault.region import Region as Description

if TYPE_CHECKING:
    from mpsguard.client.session import Session


class Chunk(NamedTuple):
    """A piece of memory to give to the vault: an exported handle (or memfd), and its size in bytes."""

    fd: int
    size: int


class Region:
    """A region of a session; one that was opened owns its descriptors until `close`."""

    def __init__(self, session: "Session", description: Description, fds: tuple[int, ...], *, owned: bool) -> None:
        self._session = session
        self._description = description
        self._fds = fds
        self._owned = owned

    @property
    def name(self) -> str:
        """Its name in the session."""
        return self._description.name

    @property
    def layout(self) -> Layout:
        """Sizes (bytes), address and GPU, the same for everybody who maps it."""
        return self._description.layout

    @property
    def generation(self) -> int:
        """Of the session, when the region was made."""
        return self._description.generation

    @property
    def metadata(self) -> bytes:
        """As it was when the region was opened, or set last here."""
        return self._description.metadata

    @property
    def metadata_version(self) -> int:
        """Raised whenever the metadata are replaced."""
        return self._description.metadata_version

    @property
    def sealed(self) -> tuple[int, ...]:
        """Indices of the chunks that were sealed when the region was opened, or sealed here since."""
        return self._description.sealed

    @property
    def fds(self) -> tuple[int, ...]:
        """One descriptor a chunk, in order. Of a region that was made here: the ones that were given, the caller's."""
        return self._fds

    def seal(self, chunks: tuple[int, ...] | None = None) -> None:
        """Declare chunks (by index; None: all) final. It is a promise to readers; the vault maps nothing.

        StaleGenerationError if this writer was fenced off, NotPermittedError for a reader.
        """
        self._description = self._session.seal(self.name, chunks)

    def set_metadata(self, metadata: bytes, expected_version: int | None = None) -> None:
        """Replace the metadata; with ``expected_version`` only if they are at that version (StaleGenerationError).

        SealedError if the whole region is sealed, TooLargeError beyond 16 KiB (or the vault's own limit).
        """
        self._description = self._session.set_metadata(self.name, metadata, expected_version)

    def close(self) -> None:
        """Tell the vault that this process does not map the region any more, and close what was opened.

        Safe to call twice, and when the vault is gone: then it learns it by the end of this process.
        """
        if self._owned:
            for fd in self._fds:
                os.close(fd)
            self._fds = ()
            self._owned = False
            self._session.forget(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
