"""The CUDA driver calls that a region needs: an interface, and its implementation with cuda-bindings."""

import importlib
from typing import Any, Final, NamedTuple, Protocol

from mpsguard.preload.zones.errors import NoZonesError, ZoneCudaError

_CONCURRENT_MANAGED_ACCESS: Final = 89
_VIRTUAL_MEMORY_MANAGEMENT: Final = 102
_RDMA_WITH_VIRTUAL_MEMORY: Final = 110
"""CUdevice_attribute (cuda.h)."""


class Context(NamedTuple):
    """A CUDA context and its device."""

    handle: int
    device: int


class Driver(Protocol):
    """Addresses and sizes in bytes; a failed call raises ZoneCudaError."""

    def current(self) -> Context:
        """Return the calling thread's context; raise ZoneCudaError 201 if it has none."""

    def has_virtual_memory(self, device: int, /) -> bool:
        """Return whether memory can be mapped at reserved addresses."""

    def has_managed_faults(self, device: int, /) -> bool:
        """Return whether the GPU's accesses to managed memory are served by page faults."""

    def uuid(self, device: int, /) -> bytes:
        """Return the GPU's UUID, 16 bytes."""

    def granularity(self, device: int, /) -> int:
        """Return the granularity of physical memory, a power of two."""

    def free_memory(self) -> int:
        """Return the free memory of the current context's device."""

    def reserve(self, length: int, alignment: int) -> int:
        """Reserve addresses."""

    def release_addresses(self, start: int, length: int) -> None:
        """Release reserved addresses."""

    def create(self, length: int, device: int, /) -> int:
        """Allocate physical memory and return its handle."""

    def release(self, handle: int) -> None:
        """Release a handle; the memory stays while it is mapped."""

    def map(self, start: int, length: int, handle: int, device: int, /) -> None:
        """Map a handle's memory with read and write access for the device; nothing stays mapped after a failure."""

    def unmap(self, start: int, length: int) -> None:
        """Remove a mapping without waiting for running work."""

    def synchronize(self, context: Context) -> None:
        """Wait for all work of a context."""


class CudaDriver:
    """The driver that the program itself uses; raises NoZonesError without cuda-bindings or without a driver."""

    def __init__(self) -> None:
        try:
            self._cuda: Any = importlib.import_module("cuda.bindings.driver")
        except ImportError:
            raise NoZonesError("cuda-bindings is not installed: pip install 'mpsguard[cuda]'") from None
        try:
            self._call("cuInit", 0)
        except RuntimeError as error:
            raise NoZonesError(f"no CUDA driver: {str(error).splitlines()[0]}") from None

    def current(self) -> Context:
        """See `Driver`."""
        handle = int(self._call("cuCtxGetCurrent"))
        return Context(handle, int(self._call("cuCtxGetDevice")))

    def has_virtual_memory(self, device: int) -> bool:
        """See `Driver`."""
        return self._has(_VIRTUAL_MEMORY_MANAGEMENT, device)

    def has_managed_faults(self, device: int) -> bool:
        """See `Driver`."""
        return self._has(_CONCURRENT_MANAGED_ACCESS, device)

    def uuid(self, device: int) -> bytes:
        """See `Driver`."""
        return bytes(self._call("cuDeviceGetUuid", device).bytes)

    def granularity(self, device: int) -> int:
        """See `Driver`."""
        least = self._cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        return int(self._call("cuMemGetAllocationGranularity", self._properties(device), least))

    def free_memory(self) -> int:
        """See `Driver`."""
        free, _total = self._call("cuMemGetInfo")
        return int(free)

    def reserve(self, length: int, alignment: int) -> int:
        """See `Driver`."""
        return int(self._call("cuMemAddressReserve", length, alignment, 0, 0))

    def release_addresses(self, start: int, length: int) -> None:
        """See `Driver`."""
        self._call("cuMemAddressFree", start, length)

    def create(self, length: int, device: int) -> int:
        """See `Driver`."""
        return int(self._call("cuMemCreate", length, self._properties(device), 0))

    def release(self, handle: int) -> None:
        """See `Driver`."""
        self._call("cuMemRelease", handle)

    def map(self, start: int, length: int, handle: int, device: int) -> None:
        """See `Driver`."""
        self._call("cuMemMap", start, length, 0, handle, 0)
        access = self._cuda.CUmemAccessDesc()
        access.location.type = self._cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = device
        access.flags = self._cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        try:
            self._call("cuMemSetAccess", start, length, [access], 1)
        except ZoneCudaError:
            self.unmap(start, length)
            raise

    def unmap(self, start: int, length: int) -> None:
        """See `Driver`."""
        self._call("cuMemUnmap", start, length)

    def synchronize(self, context: Context) -> None:
        """See `Driver`."""
        self._call("cuCtxPushCurrent", context.handle)
        try:
            self._call("cuCtxSynchronize")
        finally:
            self._call("cuCtxPopCurrent")

    def _properties(self, device: int) -> Any:
        wanted = self._cuda.CUmemAllocationProp()
        wanted.type = self._cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = self._cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = device
        # Like cuMemAlloc's memory, if the device supports it: network cards may access it.
        wanted.allocFlags.gpuDirectRDMACapable = int(self._has(_RDMA_WITH_VIRTUAL_MEMORY, device))
        return wanted

    def _has(self, attribute: int, device: int) -> bool:
        return bool(self._call("cuDeviceGetAttribute", self._cuda.CUdevice_attribute(attribute), device))

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call a driver function and return its result: None, a value, or several; raise ZoneCudaError if it fails."""
        code, *values = getattr(self._cuda, name)(*arguments)
        if int(code) != 0:
            raise ZoneCudaError(name, int(code))
        return values[0] if len(values) == 1 else values
