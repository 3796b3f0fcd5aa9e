"""A part of a mapped region, for consumers of the CUDA array interface or NumPy's."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpsguard.client.mapped.memory import Memory


class View:
    """``nbytes`` bytes at the address ``va``, one dimension of uint8; the region stays mapped while a view is alive.

    A view of GPU memory has ``__cuda_array_interface__`` (version 3), so CuPy, Numba and PyTorch use it without a copy;
    a view of host memory has ``__array_interface__``. The interface's stream is None: a consumer that uses its own
    stream must order its work itself.
    """

    def __init__(self, memory: "Memory", va: int, nbytes: int, *, readonly: bool) -> None:
        self._memory = memory
        self.va = va
        self.nbytes = nbytes
        self.readonly = readonly
        """What consumers are told. PyTorch refuses memory declared read-only."""

    def read(self) -> bytes:
        """Return a copy in host memory."""
        return self._memory.backend.read(self.va, self.nbytes)

    def write(self, data: bytes) -> None:
        """Copy ``data`` to the start of the view.

        Raises:
            ValueError: it is larger than the view.
            PermissionError: the region is mapped read-only.
        """
        if not self._memory.writable:
            raise PermissionError(f"region {self._memory.name!r} is mapped read-only")
        if len(data) > self.nbytes:
            raise ValueError(f"{len(data)} bytes for a view of {self.nbytes}")
        self._memory.backend.write(self.va, data)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._memory.backend.gpu is None:
            raise AttributeError("__cuda_array_interface__: this is memory of the host")
        return {**self._array(), "stream": None}

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self._memory.backend.gpu is not None:
            raise AttributeError("__array_interface__: this is memory of a GPU")
        return self._array()

    def _array(self) -> dict[str, Any]:
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.va, self.readonly),
            "strides": None,
            "version": 3,
        }
