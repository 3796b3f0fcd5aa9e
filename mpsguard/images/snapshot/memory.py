"""Memory as a program handed it out, checked, and readable: of a GPU, or of a simulated one."""

import fcntl
import os
import stat
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from mpsguard.images.copier.sources import CopySource, HostCopySource, host_buffers
from mpsguard.images.snapshot.errors import SnapshotError
from mpsguard.images.snapshot.memory_requests import MemoryOffer

BUFFER: Final = 32 << 20
"""Bytes that are copied at once: 0.6 ms of the bus."""
_CONTROL_DEVICE: Final = Path("/dev/nvidiactl")
"""What descriptors of exported GPU memory are of."""


class BadOfferError(Exception):
    """What the program handed out is not the memory that it should be."""


class MemoryReader(ABC):
    """Reads memory of one GPU."""

    gpu: str | None
    """UUID; None for the memory of a simulated GPU."""
    total: int
    """Bytes of the GPU's memory: a program cannot have more."""
    buffer: memoryview

    @abstractmethod
    def source(self, offer: MemoryOffer) -> CopySource:
        """Return the memory of an offer; the source owns the offer's descriptor then. Raise BadOfferError."""

    @contextmanager
    def pieces(self, offer: MemoryOffer) -> Iterator[Iterator[memoryview]]:
        """Open the memory of an offer, and iterate over the bytes of its allocation.

        A piece is valid until the next one. Raises BadOfferError, here and while iterating.
        """
        source = self.source(offer)
        try:
            with source.entered():
                yield self._read(source, offer)
        finally:
            source.close()

    def _read(self, source: CopySource, offer: MemoryOffer) -> Iterator[memoryview]:
        for at in range(0, offer.size, BUFFER):
            piece = self.buffer[: min(BUFFER, offer.size - at)]
            try:
                source.read(offer.offset + at, piece, 0)
            except OSError as error:
                raise BadOfferError(f"its memory cannot be read: {error}") from None
            yield piece


class SimulatedReader(MemoryReader):
    """Memory files, as the simulated driver of the tests has them for memory."""

    def __init__(self) -> None:
        self.gpu = None
        # As files have no more bytes than they have, each is checked by itself.
        self.total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.buffer = host_buffers(0, BUFFER).each[0]

    def source(self, offer: MemoryOffer) -> CopySource:
        """See `MemoryReader.source`."""
        with _owned(offer) as owner:
            try:
                # Answered by the kernel for memory files alone, and without asking a file system.
                fcntl.fcntl(offer.fd, fcntl.F_GET_SEALS)
            except OSError:
                raise BadOfferError("its memory is no memory file, and its GPU has no name") from None
            if os.fstat(offer.fd).st_size < offer.memory:
                raise BadOfferError("its memory is smaller than the program says")
            return HostCopySource((offer.fd,), (offer.memory,), owner.pop_all())


class GpuReader(MemoryReader):
    """Memory of a GPU, mapped read-only in a context outside of MPS, and copied to pinned memory."""

    def __init__(self, gpu: str) -> None:
        """Use the GPU with that UUID; raise SnapshotError."""
        try:
            from mpsguard.images.copier.cuda_sources import CopierGpu, pinned_buffers  # noqa: PLC0415
            from mpsguard.vault.client.cuda import CudaError, NoCudaError  # noqa: PLC0415 - loaded where there is a GPU
            from mpsguard.vault.client.cuda.driver import device_of  # noqa: PLC0415

            self._error = CudaError
            self._gpu = CopierGpu(gpu)
            self.total = int(self._gpu.backend.call("cuDeviceTotalMem", device_of(gpu)))
            self.buffer = pinned_buffers(self._gpu, 0, BUFFER).each[0]
            self._control = _CONTROL_DEVICE.stat().st_rdev
        except (NoCudaError, CudaError) as error:
            raise SnapshotError(f"the GPU {gpu} cannot be used by this command: {error}") from None
        except OSError as error:
            raise SnapshotError(f"{_CONTROL_DEVICE}: {error.strerror}") from None
        self.gpu = gpu

    def source(self, offer: MemoryOffer) -> CopySource:
        """See `MemoryReader.source`."""
        with _owned(offer) as owner:
            found = os.fstat(offer.fd)
            if not stat.S_ISCHR(found.st_mode) or found.st_rdev != self._control:
                raise BadOfferError("its descriptor is not of GPU memory")
            try:
                return self._gpu.map((offer.fd,), (offer.memory,), owner.pop_all())
            except self._error as error:
                raise BadOfferError(f"its memory cannot be mapped: {error}") from None


class Readers:
    """The reader for each GPU, made when it is first needed and kept until the process ends."""

    def __init__(self) -> None:
        self._readers: dict[bytes, MemoryReader] = {}

    def of(self, gpu: bytes) -> MemoryReader:
        """Return the one for the GPU with those bytes as UUID; raise SnapshotError."""
        if gpu not in self._readers:
            self._readers[gpu] = GpuReader(f"GPU-{uuid.UUID(bytes=gpu)}") if any(gpu) else SimulatedReader()
        return self._readers[gpu]


@contextmanager
def _owned(offer: MemoryOffer) -> Iterator[ExitStack]:
    with ExitStack() as owner:
        owner.callback(os.close, offer.fd)
        yield owner
