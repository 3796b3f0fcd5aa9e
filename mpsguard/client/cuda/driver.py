"""The CUDA driver's calls for memory that can be exported, mapped and shared; nothing is decided here."""

import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from mpsguard.client.mapped.backend import Held


class NoCudaError(Exception):
    """No CUDA driver, no such GPU, or no cuda-bindings."""


class CudaError(Exception):
    """A call of the driver was refused."""

    def __init__(self, call: str, name: str, code: int) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.code = code
        """The CUresult, 700 for a memory fault for instance: then nothing more works in this process."""


class CudaBackend:
    """See `mpsguard.client.mapped.backend.Backend`. Uses the primary context, as the runtime and PyTorch do.

    The context is kept until this process ends: the memory that is mapped belongs to it.
    """

    def __init__(self, device: int = 0) -> None:
        """``device``: CUDA's ordinal, which is PyTorch's. NoCudaError, CudaError."""
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
        # Of a MIG device this is the instance's own UUID; its name begins with MIG- then.
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
        """Makes the primary context current."""
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
        """CUDA's cuMemCreate: its content is not defined."""
        with self.entered():
            return int(self._call("cuMemCreate", size, self._memory, 0))

    def export(self, handle: int) -> int:
        """CUDA's cuMemExportToShareableHandle."""
        with self.entered():
            return int(self._call("cuMemExportToShareableHandle", handle, self._handle_type, 0))

    def drop(self, handle: int) -> None:
        """CUDA's cuMemRelease."""
        with self.entered():
            self._call("cuMemRelease", handle)

    def reserve(self, va: int, size: int) -> int:
        """CUDA's cuMemAddressReserve, for which the address is a wish."""
        with self.entered():
            return int(self._call("cuMemAddressReserve", size, 0, va, 0))

    def unreserve(self, va: int, size: int) -> None:
        """CUDA's cuMemAddressFree."""
        with self.entered():
            self._call("cuMemAddressFree", va, size)

    def map(self, va: int, size: int, handle: int) -> None:
        """CUDA's cuMemMap."""
        with self.entered():
            self._call("cuMemMap", va, size, 0, handle, 0)

    def map_all(self, va: int, chunks: Iterable[tuple[int, int]], held: Held) -> None:
        """CUDA's cuMemImportFromShareableHandle and cuMemMap of each, with as little around them as can be."""
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
        """CUDA's cuMemUnmap, after all work of the context."""
        with self.entered():
            try:
                self._call("cuCtxSynchronize")
            finally:
                self._call("cuMemUnmap", va, size)

    def allow(self, va: int, size: int, *, writable: bool) -> None:
        """CUDA's cuMemSetAccess, for this GPU alone."""
        flags = self._driver.CUmemAccess_flags
        access = self._driver.CUmemAccessDesc()
        access.location = self._location
        access.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if writable else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        with self.entered():
            self._call("cuMemSetAccess", va, size, [access], 1)

    def read(self, va: int, size: int) -> bytes:
        """CUDA's cuMemcpyDtoH, after all work of the context."""
        data = bytearray(size)
        with self.entered():
            self._call("cuCtxSynchronize")
            self._call("cuMemcpyDtoH", data, va, size)
        return bytes(data)

    def write(self, va: int, data: bytes) -> None:
        """CUDA's cuMemcpyHtoD, and the wait for it: from pageable memory it may return before."""
        with self.entered():
            self._call("cuMemcpyHtoD", va, data, len(data))
            self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: Any) -> Any:
        result, *values = getattr(self._driver, name)(*arguments)
        if int(result):
            self._refuse(name, result)
        return values[0] if values else None

    def _refuse(self, name: str, result: Any) -> NoReturn:
        _, text = self._driver.cuGetErrorName(result)
        raise CudaError(name, text.decode() if isinstance(text, bytes) else str(text), int(result))
