"""The regions of a session that a checkpoint is made of, with the memory behind them as the writer sees it."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from mpsguard.images.checkpoints.errors import CheckpointError
from mpsguard.images.checkpoints.piece_table import DIGEST
from mpsguard.images.checkpoints.pieces import RegionSpan, spans
from mpsguard.images.checkpoints.sources import SLICE, HostSource, RegionSource
from mpsguard.images.checkpoints.writing_session import WritingSession
from mpsguard.vault.client.session_memory import MappedMemory
from mpsguard.vault.wire.region import RegionRecord

OWN_PREFIX: Final = "mpsguard."
"""Regions of the project's own (counts of latencies, this request page) are no part of an image."""


class _SealedDigests:
    """The digests of a sealed region: of its first pieces, and in the end of all."""

    def __init__(self, pieces: int) -> None:
        self.content = bytearray(pieces * DIGEST)
        self.known = 0
        """Pieces."""


class SessionRegions:
    """Owns the sources of the regions; they stay open from one checkpoint to the next."""

    def __init__(self, session: WritingSession, cuda: Callable[[MappedMemory], RegionSource]) -> None:
        """``cuda`` makes the source of a region of GPU memory."""
        self._session = session
        self._cuda = cuda
        self._records: tuple[RegionRecord, ...] | None = None
        self._spans: tuple[RegionSpan, ...] = ()
        self._known: tuple[RegionRecord, ...] = ()
        """As they were when they were last asked for."""
        self._sources: dict[int, RegionSource] = {}
        self._sealed: dict[int, _SealedDigests] = {}
        """Of the regions of which all chunks are sealed, by region id: they do not change any more."""

    def changed(self) -> None:
        """Ask for all regions again: one was made, sealed, changed or released."""
        self._records = None

    def records(self) -> tuple[RegionRecord, ...]:
        """Return the regions in the order of their names; raise VaultError."""
        if self._records is None:
            found = tuple(
                self._session.describe(name) for name in self._session.names() if not name.startswith(OWN_PREFIX)
            )
            ids = {record.id for record in found}
            for gone in self._sources.keys() - ids:
                self._sources.pop(gone).close()
            for gone in self._sealed.keys() - ids:
                del self._sealed[gone]
            self._records = self._known = found
            self._spans = spans((record.name, record.layout.size) for record in found)
        return self._records

    def spans(self) -> tuple[RegionSpan, ...]:
        """Return the places of the regions among the numbered pieces; raise VaultError."""
        self.records()
        return self._spans

    @property
    def pieces(self) -> int:
        """Number of pieces of all regions; raises VaultError."""
        found = self.spans()
        return found[-1].end if found else 0

    def source(self, record: RegionRecord) -> RegionSource:
        """Return the memory of a region.

        Raises:
            CheckpointError: it lies on a GPU, and this process has not mapped it.
            VaultError: as `Session.open`.
        """
        found = self._sources.get(record.id)
        if found is None:
            found = self._sources[record.id] = self._open(record)
        return found

    def _open(self, record: RegionRecord) -> RegionSource:
        if record.layout.gpu is None:
            # Not closed by way of the region, which would tell the vault that this process no longer maps it.
            return HostSource(self._session.open(record.name).fds, record.layout.sizes)
        memory = self._session.memory.mapped.get(record.name)
        if memory is None:
            raise CheckpointError(f"region {record.name!r} lies on a GPU, and this process has not mapped it")
        return self._cuda(memory)

    def source_of(self, name: str) -> RegionSource | None:
        """Return the memory of a region that was part of a cut, by its name."""
        record = next((each for each in self._known if each.name == name), None)
        return None if record is None else self._sources.get(record.id)

    def unmapped(self, name: str) -> None:
        """Forget the memory of a region that this process unmaps."""
        for record in self._known:
            if record.name == name and record.layout.gpu is not None and record.id in self._sources:
                self._sources.pop(record.id).close()

    def released(self, name: str) -> None:
        """Close the memory of a region."""
        for record in self._known:
            if record.name == name and record.id in self._sources:
                self._sources.pop(record.id).close()

    @property
    def undigested(self) -> int:
        """Pieces of sealed regions that have no digest yet; raises VaultError."""
        numbered = zip(self.records(), self.spans(), strict=True)
        return sum(self._undigested(record, span) for record, span in numbered if record.is_sealed)

    def digest_some_sealed(self, seconds: float) -> None:
        """Digest a slice of the sealed regions, and more slices for as long as ``seconds``."""
        due = time.monotonic() + seconds
        for record, span in zip(self.records(), self.spans(), strict=True):
            while record.is_sealed and self._digest_sealed(record, span, SLICE):
                if time.monotonic() >= due:
                    return

    def digest(self, into: memoryview) -> None:
        """Write the digests of all pieces; no piece may be written meanwhile."""
        numbered = tuple(zip(self.records(), self.spans(), strict=True))
        for record, _ in numbered:
            if not record.is_sealed:
                self.source(record).settle()
        for record, span in numbered:
            place = into[span.first * DIGEST : span.end * DIGEST]
            if record.is_sealed:
                self._digest_sealed(record, span, span.end - span.first)
                place[:] = self._sealed[record.id].content
            else:
                self.source(record).digest(span, range(span.first, span.end), place)

    def _undigested(self, record: RegionRecord, span: RegionSpan) -> int:
        """Return how many pieces of a sealed region, its last ones, have no digest yet."""
        found = self._sealed.get(record.id)
        return span.end - span.first - (0 if found is None else found.known)

    def _digest_sealed(self, record: RegionRecord, span: RegionSpan, most: int) -> int:
        """Digest up to ``most`` more pieces of a sealed region, and return how many there were."""
        count = min(most, self._undigested(record, span))
        if count:
            found = self._sealed.get(record.id)
            if found is None:
                # What the program has begun to write before it sealed the region may be under way.
                self.source(record).settle()
                found = self._sealed[record.id] = _SealedDigests(span.end - span.first)
            first = span.first + found.known
            self.source(record).digest(span, range(first, first + count), memoryview(found.content))
            found.known += count
        return count

    def close(self) -> None:
        """Close all sources."""
        for source in self._sources.values():
            with suppress(OSError):
                source.close()
        self._sources = {}
