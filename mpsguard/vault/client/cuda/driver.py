"""The CUDA driver calls for memory that can be exported, mapped and shared. Makes no decisions."""

import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from mpsguard.vault.client.mapped.backend import Held

_PORTABLE: Final = 1
"""CU_MEMHOSTREGISTER_PORTABLE."""
_READ_ONLY: Final = 8
"""CU_MEMHOSTREGISTER_READ_ONLY."""
_CANNOT_PIN: Final = frozenset({1, 304, 801})
"""CUDA_ERROR_INVALID_VALUE, OPERATING_SYSTEM and NOT_SUPPORTED: of drivers that do not pin memory mapped read-only."""
_NON_BLOCKING: Final = 1
"""CU_STREAM_NON_BLOCKING."""


class NoCudaError(Exception):
    """No CUDA driver, no such GPU, or no cuda-bindings."""


class CudaError(Exception):
    """A driver call failed."""

    def __init__(self, call: str, name: str, code: int) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.code = code
        """The CUresult, for instance 700 for a memory fault, after which every call in this process fails."""


def device_of(gpu: str) -> int:
    """Return CUDA's ordinal of the GPU with that UUID, without making a context; raise NoCudaError."""
    try:
        from cuda.bindings import driver  # noqa: PLC0415 - as in `CudaBackend`
    except ImportError as error:
        raise NoCudaError(f"cuda-bindings is not installed (pip install 'mpsguard[cuda]'): {error}") from None
    result, count = driver.cuInit(0)[0], 0
    if not int(result):
        result, count = driver.cuDeviceGetCount()
    for device in range(count):
        result, found = driver.cuDeviceGetUuid(device)
        if not int(result) and gpu == f"GPU-{uuid.UUID(bytes=bytes(found.bytes))}":
            return device
    raise NoCudaError(f"no GPU {gpu} among {count} (result {int(result)})")


class CudaBackend:
    """GPU memory as a backend (`mpsguard.vault.client.mapped.backend.Backend`).

    Uses the primary context, like the runtime and PyTorch. The context is kept until the process ends: the mapped
    memory belongs to it.
    """

    def __init__(self, device: int = 0) -> None:
        """Use a GPU by CUDA's ordinal, which is also PyTorch's; raise NoCudaError or CudaError."""
        try:
            from cuda.bindings import driver  # noqa: PLC0415 - an application without a GPU need not have it
        except ImportError as error:
            raise NoCudaError(f"cuda-bindings is not installed (pip install 'mpsguard[cuda]'): {error}") from None
        self._driver = driver
        self._inside = threading.local()
        try:
            self._call("cuInit", 0)
            self._device = self._call("cuDeviceGet", device)
        except (CudaError, RuntimeError) as error:
            raise NoCudaError(f"no CUDA device {device}: {error}") from None
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        # For a MIG device this is the instance's own UUID, with the prefix MIG-.
        self.gpu: str | None = f"GPU-{uuid.UUID(bytes=bytes(self._call('cuDeviceGetUuid', self._device).bytes))}"
        self.device = f"cuda:{device}"
        self._handle_type = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self._location = driver.CUmemLocation()
        self._location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._location.id = device
        self._memory = driver.CUmemAllocationProp()
        self._memory.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._memory.location = self._location
        self._memory.requestedHandleTypes = self._handle_type
        smallest = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        with self.entered():
            self.granularity = int(self._call("cuMemGetAllocationGranularity", self._memory, smallest))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the primary context current."""
        if getattr(self._inside, "yes", False):
            yield
            return
        self._call("cuCtxPushCurrent", self._context)
        self._inside.yes = True
        try:
            yield
        finally:
            self._inside.yes = False
            self._call("cuCtxPopCurrent")

    def make(self, size: int) -> int:
        """Call cuMemCreate: the content is undefined."""
        with self.entered():
            return int(self._call("cuMemCreate", size, self._memory, 0))

    def export(self, handle: int) -> int:
        """Call cuMemExportToShareableHandle."""
        with self.entered():
            return int(self._call("cuMemExportToShareableHandle", handle, self._handle_type, 0))

    def drop(self, handle: int) -> None:
        """Call cuMemRelease."""
        with self.entered():
            self._call("cuMemRelease", handle)

    def reserve(self, va: int, size: int) -> int:
        """Call cuMemAddressReserve, which takes the address as a hint."""
        with self.entered():
            return int(self._call("cuMemAddressReserve", size, 0, va, 0))

    def unreserve(self, va: int, size: int) -> None:
        """Call cuMemAddressFree."""
        with self.entered():
            self._call("cuMemAddressFree", va, size)

    def map(self, va: int, size: int, handle: int) -> None:
        """Call cuMemMap."""
        with self.entered():
            self._call("cuMemMap", va, size, 0, handle, 0)

    def map_all(self, va: int, chunks: Iterable[tuple[int, int]], held: Held) -> None:
        """Call cuMemImportFromShareableHandle and cuMemMap for each descriptor, with minimal overhead."""
        take, put, kind = self._driver.cuMemImportFromShareableHandle, self._driver.cuMemMap, self._handle_type
        handles, at = held.handles, va
        with self.entered():
            try:
                for fd, size in chunks:
                    result, handle = take(fd, kind)
                    if result:
                        self._refuse("cuMemImportFromShareableHandle", result)
                    handles.append(handle)
                    (result,) = put(at, size, 0, handle, 0)
                    if result:
                        self._refuse("cuMemMap", result)
                    at += size
            finally:
                held.mapped = at - va

    def unmap(self, va: int, size: int) -> None:
        """Call cuMemUnmap after all work of the context."""
        with self.entered():
            try:
                self._call("cuCtxSynchronize")
            finally:
                self._call("cuMemUnmap", va, size)

    def allow(self, va: int, size: int, *, writable: bool) -> None:
        """Call cuMemSetAccess, for this GPU only."""
        flags = self._driver.CUmemAccess_flags
        access = self._driver.CUmemAccessDesc()
        access.location = self._location
        access.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if writable else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        with self.entered():
            self._call("cuMemSetAccess", va, size, [access], 1)

    def read(self, va: int, size: int) -> bytes:
        """Call cuMemcpyDtoH after all work of the context."""
        data = bytearray(size)
        with self.entered():
            self._call("cuCtxSynchronize")
            self._call("cuMemcpyDtoH", data, va, size)
        return bytes(data)

    def write(self, va: int, data: bytes) -> None:
        """Call cuMemcpyHtoD and wait for it: from pageable memory it may return earlier."""
        with self.entered():
            self._call("cuMemcpyHtoD", va, data, len(data))
            self._call("cuCtxSynchronize")

    def pin(self, address: int, size: int) -> bool:
        """Call cuMemHostRegister, for all contexts of this process, without the right to write."""
        try:
            self.call("cuMemHostRegister", address, size, _PORTABLE | _READ_ONLY)
        except CudaError as error:
            if error.code in _CANNOT_PIN:
                return False
            raise
        return True

    def unpin(self, address: int) -> None:
        """Call cuMemHostUnregister."""
        self.call("cuMemHostUnregister", address)

    def begin_copy(self, va: int, address: int, size: int) -> None:
        """Call cuMemcpyHtoDAsync on a stream of the calling thread."""
        self.call("cuMemcpyHtoDAsync", va, address, size, self._stream())

    def settle(self) -> None:
        """Call cuStreamSynchronize for the calling thread's stream."""
        self.call("cuStreamSynchronize", self._stream())

    def _stream(self) -> Any:
        """Return the stream of the calling thread; it exists until the process ends, as the context does."""
        if not hasattr(self._inside, "stream"):
            self._inside.stream = self.call("cuStreamCreate", _NON_BLOCKING)
        return self._inside.stream

    def call(self, name: str, *arguments: Any) -> Any:
        """Make another call of the driver in the primary context; raise CudaError."""
        if getattr(self._inside, "yes", False):
            return self._call(name, *arguments)
        with self.entered():
            return self._call(name, *arguments)

    def _call(self, name: str, *arguments: Any) -> Any:
        result, *values = getattr(self._driver, name)(*arguments)
        if int(result):
            self._refuse(name, result)
        return values[0] if values else None

    def _refuse(self, name: str, result: Any) -> NoReturn:
        _, text = self._driver.cuGetErrorName(result)
        raise CudaError(name, text.decode() if isinstance(text, bytes) else str(text), int(result))
