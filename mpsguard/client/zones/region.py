"""A region: device memory of its own, with a zone before it and one behind it."""

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mpsguard.client.zones.settings import Kind

if TYPE_CHECKING:
    from mpsguard.client.zones.space import ZoneSpace


class ZonedRegion:
    """Made by `ZoneSpace.allocate`; it owns its memory until `close`.

    It can be handed to whatever takes `__cuda_array_interface__`: `torch.as_tensor(region, device="cuda")` is a tensor
    of bytes in this memory, without a copy.
    """

    def __init__(self, space: "ZoneSpace", number: int, address: int, size: int) -> None:
        self._space = space
        self._number = number
        self._address = address
        self._size = size

    @property
    def address(self) -> int:
        """Of its first byte, on the device."""
        return self._address

    @property
    def size(self) -> int:
        """Bytes that were asked for."""
        return self._size

    @property
    def number(self) -> int:
        """Counted from 1 in the order in which the space's regions were made; incidents name it."""
        return self._number

    @property
    def kind(self) -> Kind:
        """What is around it now. Its zones go when too little of the card is free for them (docs/guides/preload.md)."""
        return self._space.kind_of(self._number)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3: one dimension of bytes. Who uses the memory keeps this region, and waits for its own work."""
        return {"shape": (self._size,), "typestr": "|u1", "data": (self._address, False), "version": 3}

    def close(self) -> None:
        """Wait for all work of the context it was made in, and give everything back; safe to call twice.

        CudaError if the driver refuses: what is left is tried again by the next `close`, or by the space's.
        """
        self._space.take_back(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
