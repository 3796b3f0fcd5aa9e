"""The regions of the session as the copier has them open, from one checkpoint to the next."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from mpsguard.images.checkpoints.messages import Setup
from mpsguard.images.checkpoints.pieces import PIECE, RegionSpan, spans
from mpsguard.images.checkpoints.session_regions import OWN_PREFIX
from mpsguard.images.copier.run import DRAINERS, PIECES_AT_ONCE, RunMemory
from mpsguard.images.copier.sources import Buffers, CopySource, HostCopySource, host_buffers
from mpsguard.vault.client.session import Session
from mpsguard.vault.wire.errors import VaultError
from mpsguard.vault.wire.region import RegionRecord

if TYPE_CHECKING:
    from mpsguard.images.copier.cuda_sources import CopierGpu

_BUFFER: Final = PIECES_AT_ONCE * PIECE


class RegionChangedError(Exception):
    """A region is not the one that the writer means."""


class OpenedRegions:
    """Owns what is mapped of the session, the spare memory and the buffers."""

    def __init__(self, session: Session, setup: Setup, spare_fd: int | None) -> None:
        """Map the spare memory and allocate the buffers; ``spare_fd`` stays owned by the caller."""
        self._session = session
        self._setup = setup
        self._sources: dict[int, CopySource] = {}
        self._gpus: dict[str, CopierGpu] = {}
        self._pinned: Buffers | None = None
        self._spare: CopySource | None = None
        if spare_fd is not None and setup.spare:
            if setup.spare_gpu is None:
                self._spare = HostCopySource((spare_fd,), (setup.spare,), ExitStack())
            else:
                self._spare = self._on_gpu(setup.spare_gpu, (spare_fd,), (setup.spare,), ExitStack())
        self._buffers = host_buffers(0 if setup.spare_gpu else setup.buffers, _BUFFER)

    def prepare(self, gpus: Sequence[str]) -> None:
        """Make contexts on these GPUs, and pin the buffers, ahead of the first checkpoint."""
        if not gpus:
            return
        from mpsguard.images.copier.cuda_sources import pinned_buffers  # noqa: PLC0415 - needs cuda-bindings

        for gpu in gpus:
            self._gpu(gpu)
        if self._pinned is None:
            self._pinned = pinned_buffers(self._gpu(gpus[0]), self._setup.buffers, _BUFFER)

    def open_ahead(self) -> None:
        """Open the regions that there are, ahead of the first checkpoint; `open` says what it cannot."""
        # On a GPU, mapping memory may hold up the program's own work there.
        with suppress(VaultError):
            for name in self._session.names():
                if not name.startswith(OWN_PREFIX):
                    with suppress(Exception):
                        record = self._session.describe(name)
                        self._sources[record.id] = self._open(record)
                        self._read_ahead(record)

    def _read_ahead(self, record: RegionRecord) -> None:
        """Copy a piece with each stream: a context's first copies hold up the program's work on the GPU, too."""
        if record.layout.gpu is None or self._pinned is None:
            return
        source, buffer = self._sources[record.id], self._pinned.each[0]
        with source.entered():
            for stream in range(DRAINERS):
                source.read(0, buffer[: min(PIECE, record.layout.size)], stream)

    def open(self, records: Sequence[RegionRecord]) -> RunMemory:
        """Open the regions of a plan, and close those that are in it no more.

        Raises:
            RegionChangedError: a region was released, and perhaps made again.
            VaultError, OSError, CudaError: it cannot be opened.
        """
        ids = {record.id for record in records}
        for gone in self._sources.keys() - ids:
            self._sources.pop(gone).close()
        for record in records:
            if record.id not in self._sources:
                self._sources[record.id] = self._open(record)
        numbered = spans((record.name, record.layout.size) for record in records)
        regions: list[tuple[RegionSpan, CopySource]] = [
            (span, self._sources[record.id]) for span, record in zip(numbered, records, strict=True)
        ]
        gpus = sorted({record.layout.gpu for record in records if record.layout.gpu is not None})
        self.prepare(gpus)
        buffers = self._buffers if self._pinned is None else self._pinned
        slots = 0 if self._spare is None else self._setup.spare // PIECE
        return RunMemory(regions, self._spare, slots, buffers.each)

    def _open(self, record: RegionRecord) -> CopySource:
        with ExitStack() as undo:
            region = undo.enter_context(self._session.open(record.name, sizes=record.layout.sizes))
            if region.id != record.id:
                raise RegionChangedError(f"region {record.name!r} is another one than at the cut")
            if record.layout.gpu is None:
                return HostCopySource(region.fds, record.layout.sizes, undo.pop_all())
            return self._on_gpu(record.layout.gpu, region.fds, record.layout.sizes, undo.pop_all())

    def _on_gpu(self, gpu: str, fds: Sequence[int], sizes: Sequence[int], owner: ExitStack) -> CopySource:
        return self._gpu(gpu).map(fds, sizes, owner)

    def _gpu(self, gpu: str) -> "CopierGpu":
        from mpsguard.images.copier.cuda_sources import CopierGpu  # noqa: PLC0415 - needs cuda-bindings

        if gpu not in self._gpus:
            self._gpus[gpu] = CopierGpu(gpu)
        return self._gpus[gpu]

    def close(self) -> None:
        """Give back what is mapped; the driver's errors are of no interest any more."""
        for source in self._sources.values():
            with suppress(Exception):
                source.close()
        self._sources = {}
