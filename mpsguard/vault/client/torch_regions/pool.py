"""A memory pool of PyTorch's CUDA allocator that lies in a region."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mpsguard.vault.client.mapped import Memory
from mpsguard.vault.client.torch_regions import library


class RegionPool:
    """Places PyTorch's GPU allocations in a region that was created here. Owns the pool; close it before the region.

        with cuda.create(session, "weights", size) as memory, RegionPool(memory) as pool:
            with pool.use():
                model = build()

    PyTorch allocates segments of 2 MiB (for tensors up to 1 MiB), of 20 MiB (up to 10 MiB), and of the next multiple of
    2 MiB. It raises torch.OutOfMemoryError when the region is full.
    """

    def __init__(self, memory: Memory) -> None:
        """Create a pool; raise ValueError if the region is not on a GPU, or was not created here.

        An attached region is refused because the pool would overwrite its content.
        """
        if memory.backend.gpu is None or not memory.made:
            raise ValueError(f"region {memory.name!r}: only a GPU's memory that was made here can become a pool")
        path = library.path()
        self._library = library.load(path)
        self._device = torch.device(memory.backend.device)
        self._view = memory.view()
        wait = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuCtxSynchronize, ctypes.c_void_p)
        self._number = self._library.mpsguard_pool_open(memory.va, memory.size, self._device.index, wait)
        if self._number < 0:
            raise ValueError(f"region {memory.name!r} has less than {library.UNIT} bytes, or there are too many pools")
        allocator = torch.cuda.memory.CUDAPluggableAllocator(str(path), "mpsguard_pool_allocate", "mpsguard_pool_free")
        # MemPool holds no reference to it.
        self._allocator = allocator
        self._pool: torch.cuda.MemPool | None = torch.cuda.MemPool(allocator.allocator())

    @property
    def used(self) -> int:
        """Bytes of the region that PyTorch has allocated, in segments."""
        return int(self._library.mpsguard_pool_used(self._number))

    @contextmanager
    def use(self) -> Iterator[None]:
        """Enter a block in which this thread's CUDA tensors lie in the region.

        Tensors of threads that it starts (autograd's) do not.
        """
        before = self._library.mpsguard_pool_enter(self._number)
        try:
            with torch.cuda.use_mem_pool(self._pool, self._device):
                yield
        finally:
            self._library.mpsguard_pool_enter(before)

    def close(self) -> None:
        """Return the memory to the region; raise BufferError while a tensor lies there. Safe to call twice."""
        if self._number < 0:
            return
        torch.cuda.synchronize(self._device)
        alive = sum(segment["active_size"] for segment in self._pool.snapshot()) if self._pool else 0
        if alive:
            raise BufferError(f"{alive} bytes of the region are tensors that are alive")
        # Deleting the pool frees its segments.
        self._pool = None
        if self._library.mpsguard_pool_close(self._number):
            raise BufferError(f"{self.used} bytes of the region are still PyTorch's")
        self._number = -1
        del self._view

    def __enter__(self) -> "RegionPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
