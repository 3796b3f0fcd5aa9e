"""The interface between mapped regions and the kind of memory: the calls that a driver, or the kernel, implements."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


class AddressTakenError(Exception):
    """The region's addresses are in use in this process, so it cannot be mapped where other processes have it."""


@dataclass
class Held:
    """What `Backend.map_all` has acquired so far."""

    handles: list[Any] = field(default_factory=list)
    """Handles to drop, in the backend's own form."""
    mapped: int = 0
    """Bytes from the start that are to be unmapped."""

    def give_back(self, backend: "Backend", va: int) -> None:
        """Unmap what was mapped from ``va`` on, and drop the handles; all of it, also where a step fails."""
        # Handles are dropped here and not after mapping, which a failover waits for; a mapping keeps its memory without
        # them.
        with ExitStack() as undo:
            for handle in self.handles:
                undo.callback(backend.drop, handle)
            if self.mapped:
                undo.callback(backend.unmap, va, self.mapped)


@runtime_checkable
class Backend(Protocol):
    """Memory of one kind on one device. Sizes and addresses are in bytes; every call raises its driver's errors.

    Handles are defined by the backend and owned by the caller until `drop`; a mapping keeps its memory without them.
    """

    gpu: str | None
    """UUID of the GPU that holds the memory; None for host memory."""
    device: str
    """PyTorch's name of the device: ``cuda:0``, ``cpu``."""
    granularity: int
    """Sizes and addresses are multiples of it."""

    def entered(self) -> AbstractContextManager[None]:
        """Return a context that sets up this thread once for all calls within it."""

    def make(self, size: int) -> int:
        """Allocate memory and return its handle."""

    def export(self, handle: int) -> int:
        """Return a descriptor of the memory, owned by the caller."""

    def drop(self, handle: int) -> None:
        """Release a handle."""

    def reserve(self, va: int, size: int) -> int:
        """Reserve addresses, at ``va`` if possible, and return where they are."""

    def unreserve(self, va: int, size: int) -> None:
        """Release reserved addresses at which nothing is mapped."""

    def map(self, va: int, size: int, handle: int) -> None:
        """Map memory at reserved addresses, without access rights yet."""

    def map_all(self, va: int, chunks: Iterable[tuple[int, int]], held: Held) -> None:
        """Map the memory of descriptors back to back at reserved addresses from ``va`` on.

        One call for all chunks, because there may be thousands and a failover waits for it.

        Args:
            va: address of the first chunk.
            chunks: descriptors, which stay owned by the caller, and sizes.
            held: at any moment, also after an exception, what must be released.
        """

    def unmap(self, va: int, size: int) -> None:
        """Unmap one or several mappings."""

    def allow(self, va: int, size: int, *, writable: bool) -> None:
        """Let this process read the mapping, and write it if ``writable``."""

    def read(self, va: int, size: int) -> bytes:
        """Return a copy in host memory, after all earlier work has finished."""

    def write(self, va: int, data: bytes) -> None:
        """Copy from host memory; finished on return."""


class CopyingBackend(Backend, Protocol):
    """A backend that also copies from host memory without waiting."""

    def pin(self, address: int, size: int) -> bool:
        """Lock host memory that is mapped read-only, for copies at the bus' full rate; False if it cannot be locked."""

    def unpin(self, address: int) -> None:
        """Unlock memory that was locked as a whole, from ``address`` on."""

    def begin_copy(self, va: int, address: int, size: int) -> None:
        """Begin to copy from host memory to ``va``, after this thread's earlier copies."""

    def settle(self) -> None:
        """Return when all copies that this thread began are finished."""
