"""Memory that a process has mapped at a region's address before the region was there."""

from contextlib import ExitStack
from dataclasses import dataclass


@dataclass(frozen=True)
class MappedAhead:
    """A writable mapping that waits for `client.mapped.attach` to take it; until then its owner unmaps it."""

    va: int
    sizes: tuple[int, ...]
    """Bytes of each chunk, back to back from ``va`` on."""
    gpu: str | None
    """UUID of the GPU that has the memory; None: host memory."""
    undo: ExitStack
    """Unmaps it, and frees the addresses."""

    def is_of(self, va: int, sizes: tuple[int, ...], gpu: str | None) -> bool:
        """Return whether a region is what was mapped."""
        return (self.va, self.sizes, self.gpu) == (va, sizes, gpu)
