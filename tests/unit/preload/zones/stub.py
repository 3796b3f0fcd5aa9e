"""A stub of the CUDA driver: addresses are really reserved in this process, memory is only booked.

The UVM device is a memfd, as in the preload's tests; what UVM answers to ioctls is booked too.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections import Counter
from pathlib import Path

from mpsguard.preload import zone_table
from mpsguard.preload.zone_table import ZoneTable
from mpsguard.preload.zones import ZoneCudaError
from mpsguard.preload.zones.driver import Context
from mpsguard.preload.zones.uvm import (
    RANGE,
    SPARSE,
    UVM_CREATE_EXTERNAL_RANGE,
    UVM_FREE,
    UVM_MAP_EXTERNAL_SPARSE,
    Uvm,
    _libc,
)

MIB = 1 << 20
UNIT = 2 * MIB
UVM_LINK = "/memfd:nvidia-uvm (deleted)"
GPU = bytes(range(16))
FDS = "/proc/self/fd"
PROT_NONE, PRIVATE_ANONYMOUS_NORESERVE = 0, 0x2 | 0x20 | 0x4000


def armed_in_maps() -> int:
    """Bytes of managed ranges that the kernel has."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:nvidia-uvm" in line]
    ends = [[int(end, 16) for end in line[0].split("-")] for line in lines]
    return sum(high - low for low, high in ends)


def table_of_this_process() -> ZoneTable:
    """The one zone table that this process shows, read as the guard reads it."""
    (fd,) = [int(name) for name in os.listdir(FDS) if _link(name) == zone_table.LINK]
    return zone_table.read(fd)


def _link(name: str) -> str:
    try:
        return os.readlink(f"{FDS}/{name}")
    except FileNotFoundError:
        return ""


class StubDriver:
    """Keeps the driver's rules, and refuses the nth call of a name if told so."""

    def __init__(self, free: int = 100 << 30, *, lacking: int | None = None) -> None:
        self.free = free
        self.lacking = lacking
        self.reserved: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self.handles: dict[int, int] = {}
        self.calls: Counter[str] = Counter()
        self.refuse: dict[str, int] = {}
        self.synchronized: list[Context] = []
        self.context = Context(7, 0)

    def enter(self, name: str, code: int = 2) -> None:
        self.calls[name] += 1
        if name in self.refuse:
            self.refuse[name] -= 1
            if self.refuse[name] == 0:
                del self.refuse[name]
                raise ZoneCudaError(name, code)

    def current(self) -> Context:
        self.enter("current", 201)
        return self.context

    def has_virtual_memory(self, _device: int) -> bool:
        return self.lacking != 102

    def has_managed_faults(self, _device: int) -> bool:
        return self.lacking != 89

    def uuid(self, _device: int) -> bytes:
        return GPU

    def granularity(self, _device: int) -> int:
        return UNIT

    def free_memory(self) -> int:
        self.enter("free_memory")
        return self.free

    def reserve(self, length: int, alignment: int) -> int:
        self.enter("reserve")
        raw = _libc.mmap(0, length + alignment, PROT_NONE, PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
        assert raw != ctypes.c_void_p(-1).value
        start: int = (raw + alignment - 1) & ~(alignment - 1)
        if start > raw:
            _libc.munmap(raw, start - raw)
        _libc.munmap(start + length, raw + alignment - start)
        self.reserved[start] = length
        return start

    def release_addresses(self, start: int, length: int) -> None:
        self.enter("release_addresses")
        assert self.reserved[start] == length
        assert not [at for at in self.mapped if start <= at < start + length], "mapped addresses are given back"
        del self.reserved[start]
        _libc.munmap(start, length)

    def create(self, length: int, _device: int) -> int:
        self.enter("create")
        assert length % UNIT == 0
        handle = max(self.handles, default=0) + 1
        self.handles[handle] = length
        return handle

    def release(self, handle: int) -> None:
        self.enter("release")
        del self.handles[handle]

    def map(self, start: int, length: int, handle: int, _device: int) -> None:
        self.enter("map")
        assert self.handles[handle] == length
        assert [at for at, size in self.reserved.items() if at <= start and start + length <= at + size]
        self.mapped[start] = length

    def unmap(self, start: int, length: int) -> None:
        self.enter("unmap")
        assert self.mapped.pop(start) == length

    def synchronize(self, context: Context) -> None:
        self.enter("synchronize")
        self.synchronized.append(context)

    @property
    def holds_nothing(self) -> bool:
        return not (self.reserved or self.mapped or self.handles)


class StubUvm:
    """The descriptors of a UVM device as CUDA holds them: one that takes no mappings, one that is the VA space."""

    def __init__(self, *, takes_mappings: bool = True, sparse: bool = True) -> None:
        self.sparse: dict[int, int] = {}
        self._sparse_works = sparse
        space = os.memfd_create("nvidia-uvm", os.MFD_CLOEXEC)
        os.ftruncate(space, 1 << 48)
        self._wrong = os.open(f"/proc/self/fd/{space}", os.O_RDONLY | os.O_CLOEXEC)
        if takes_mappings:
            self._space = space
        else:
            self._space = os.open(f"/proc/self/fd/{space}", os.O_RDONLY | os.O_CLOEXEC)
            os.close(space)
        self.uvm = Uvm(UVM_LINK, ioctl=self.ioctl)

    def ioctl(self, fd: int, number: int, words: bytearray) -> int:
        form = SPARSE if number == UVM_MAP_EXTERNAL_SPARSE else RANGE
        if fd == self._wrong:
            raise OSError(errno.EINVAL, "not this one")
        start, length, *rest = form.unpack(words)
        status = 0
        if not self._sparse_works and number == UVM_MAP_EXTERNAL_SPARSE:
            status = 0x56
        elif number == UVM_CREATE_EXTERNAL_RANGE:
            assert not [at for at, size in self.sparse.items() if at < start + length and start < at + size]
            self.sparse[start] = length
        elif number == UVM_MAP_EXTERNAL_SPARSE:
            assert (self.sparse[start], rest[0]) == (length, GPU)
        elif number == UVM_FREE:
            status = 0 if self.sparse.pop(start, None) == length else 0x1E
        struct.pack_into("<I", words, form.size - 8, status)
        return 0

    def close(self) -> None:
        os.close(self._space)
        os.close(self._wrong)
