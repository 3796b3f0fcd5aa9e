"""What a kind of memory must be able to do to be mapped: the few calls behind which a driver, or the kernel, is."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


class AddressTakenError(Exception):
    """The region's addresses are not free in this process, so it cannot be mapped where everybody else has it."""


@dataclass
class Held:
    """What `Backend.map_all` has taken so far."""

    handles: list[Any] = field(default_factory=list)
    """Each is to be dropped; in whatever form the backend likes best."""
    mapped: int = 0
    """Bytes from the start on that are to be unmapped."""


@runtime_checkable
class Backend(Protocol):
    """Memory of one kind, on one device. Sizes and addresses are bytes; every call raises what its driver refuses.

    Handles are the backend's own, and owned by the caller until `drop`; a mapping keeps its memory without them.
    """

    gpu: str | None
    """UUID of the GPU on which the memory lies; None for memory of the host."""
    device: str
    """The device's name in PyTorch: ``cuda:0``, ``cpu``."""
    granularity: int
    """Sizes and addresses are multiples of it."""

    def entered(self) -> AbstractContextManager[None]:
        """What every call needs, done once for all calls of this thread within."""

    def make(self, size: int) -> int:
        """New memory; a handle."""

    def export(self, handle: int) -> int:
        """A descriptor of the memory, owned by the caller."""

    def drop(self, handle: int) -> None:
        """Give a handle back."""

    def reserve(self, va: int, size: int) -> int:
        """Keep addresses free for us, at ``va`` if that can be; where they are."""

    def unreserve(self, va: int, size: int) -> None:
        """Give them back; nothing is mapped there."""

    def map(self, va: int, size: int, handle: int) -> None:
        """Put memory at reserved addresses, for nobody's access yet."""

    def map_all(self, va: int, chunks: Iterable[tuple[int, int]], held: Held) -> None:
        """Put the memory of descriptors, which stay the caller's, at reserved addresses from ``va`` on, in a row.

        ``chunks``: descriptors and sizes. One call for all, since there may be thousands and somebody waits. ``held``
        says at any moment what is to be given back, also if this raises.
        """

    def unmap(self, va: int, size: int) -> None:
        """Take away again what was mapped there, one piece or several."""

    def allow(self, va: int, size: int, *, writable: bool) -> None:
        """Let this process read what is mapped there, and write it if ``writable``."""

    def read(self, va: int, size: int) -> bytes:
        """A copy in memory of the host, when all work before it is done."""

    def write(self, va: int, data: bytes) -> None:
        """Copy from memory of the host; done when it returns."""
