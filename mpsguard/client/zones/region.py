"""A region of device memory, with a zone before it and one behind it."""

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mpsguard.client.zones.settings import Kind

if TYPE_CHECKING:
    from mpsguard.client.zones.space import ZoneSpace


class ZonedRegion:
    """Returned by `ZoneSpace.allocate`; owns its memory until `close`.

    It can be passed to consumers of `__cuda_array_interface__`: `torch.as_tensor(region, device="cuda")` is a tensor of
    bytes in this memory, without a copy.
    """

    def __init__(self, space: "ZoneSpace", number: int, address: int, size: int) -> None:
        self._space = space
        self._number = number
        self._address = address
        self._size = size

    @property
    def address(self) -> int:
        """Device address of the first byte."""
        return self._address

    @property
    def size(self) -> int:
        """Requested size in bytes."""
        return self._size

    @property
    def number(self) -> int:
        """Number in the space, from 1 in order of creation; incidents refer to it."""
        return self._number

    @property
    def kind(self) -> Kind:
        """The current kind of its zones. They go when the card runs short of memory (docs/guides/preload.md)."""
        return self._space.kind_of(self._number)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3, one dimension of bytes. The consumer must keep this region alive, and wait for its own work."""
        return {"shape": (self._size,), "typestr": "|u1", "data": (self._address, False), "version": 3}

    def close(self) -> None:
        """Wait for all work of the region's context, and free everything; safe to call twice.

        Raises:
            CudaError: the driver refused; the next `close`, or that of the space, retries what is left.
        """
        self._space.close_region(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
