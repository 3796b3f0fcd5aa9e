"""GPU core dumps, taken apart without cuda-gdb: which SMs stopped at which instruction, and in which process' kernel.

Format: `cudacoredump.h` of the CUDA toolkit (the debugger's extras), an ELF file of machine 190 with a section a table.
What the tables say under MPS was measured on an H200 with driver 580.159.04:

* The table of SMs is of the whole GPU: every process's dump has the exceptions of all SMs, with the address of the
  instruction in the address space of the process that was at fault.
* Grids and threads are of the dumping process alone: an exception in a thread is of its own kernel.
* `trap` leaves neither; the process that did it is then the only one with a grid on the GPU.
"""

import os
import struct
import time
from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

from mpsguard.linux.files import prompt_read

_HEADER: Final = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_MAGIC: Final = b"\x7fELF"
_CLASS_64: Final = 2
_LITTLE_ENDIAN: Final = 1
_CORE: Final = 4
_CUDA: Final = 190
_EXTENDED: Final = 0
"""e_shnum of a file with more sections than it can hold; the first section's sh_size has their number (elf(5))."""

_SMS: Final = 0x8000000B
_GRIDS: Final = 0x8000000C
_THREADS: Final = 0x8000000F
_SM: Final = struct.Struct("<IIIIQ")
"""Of an SM since driver 555: its number, padding, exception, whether the address is valid, the address."""
_THREAD_EXCEPTION: Final = struct.Struct("<32xI")
_MOST_SECTIONS: Final = 1 << 16
"""A table a warp, and some more: 132 SMs with 64 warps each have 8,448."""
_WIDEST_ENTRY: Final = 256
_MOST_ROWS: Final = 1 << 20
"""A row a thread: 132 SMs with 2,048 threads each have 270,336."""
_MOST_BYTES: Final = 64 << 20
"""Of all tables; a row of a thread has 56 bytes."""

_READ_WITHIN: Final = 1.0
"""Seconds for reading a dump that is not in memory, or that a process holds."""
_LOOK: Final = 0.002
"""Seconds between two attempts."""

_EXCEPTIONS: Final = {
    1: "illegal address in a lane",
    2: "user stack overflow",
    3: "hardware stack overflow",
    4: "illegal instruction",
    5: "address out of range",
    6: "misaligned address",
    7: "invalid address space",
    8: "invalid program counter",
    9: "hardware stack overflow",
    10: "illegal address",
    11: "misaligned address in a lane",
    12: "assertion",
    13: "system call error",
    14: "illegal address",
}
"""CUDBGException_t of `cudadebugger.h`, in our words."""


class NotACoreError(Exception):
    """It is no GPU core dump, or one that is cut short; one line says why."""


class SmException(msgspec.Struct, frozen=True):
    """An SM that stopped: why, and at which instruction if that is known."""

    sm: int
    exception: int
    pc: int | None


class GpuCore(msgspec.Struct, frozen=True):
    """What one dump says."""

    sms: tuple[SmException, ...]
    """SMs of the whole GPU with an exception, of any process."""
    grids: int
    """Kernels of the dumping process that were on the GPU."""
    raised: bool
    """Whether a thread of the dumping process has an exception."""


def exception_name(number: int) -> str:
    """A `CUDBGException_t` in words."""
    return _EXCEPTIONS.get(number, f"exception {number}")


class Dump(Protocol):
    """Where a dump's bytes are, to be read in pieces: it may be a file of any size, with holes."""

    size: int

    def read(self, offset: int, size: int) -> bytes:
        """So many bytes, or fewer at the end. May raise OSError."""
        ...


class DumpBytes:
    """A dump in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, size: int) -> bytes:
        """See `Dump`."""
        return self._data[offset : offset + size]


class DumpFile:
    """A dump behind a descriptor, which stays the caller's."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.size = os.fstat(fd).st_size
        self._due = time.monotonic() + _READ_WITHIN

    def read(self, offset: int, size: int) -> bytes:
        """See `Dump`. BlockingIOError if a process holds the file, or the disk takes too long."""
        found = b""
        while len(found) < size:
            try:
                more = prompt_read.read(self._fd, size - len(found), offset + len(found))
            except BlockingIOError:
                if time.monotonic() > self._due:
                    raise
                time.sleep(_LOOK)
                continue
            if not more:
                break
            found += more
        return found


def parse(data: bytes | Dump) -> GpuCore:
    """Read a dump. Its bytes are a stranger's: NotACoreError for whatever is wrong with them, and nothing else.

    Of a file only the header and the tables of interest are read, and no more of them than a real dump has.
    """
    dump = DumpBytes(data) if isinstance(data, bytes) else data
    sms: list[SmException] = []
    grids = 0
    raised = False
    rows = 0
    for kind, table, width in _tables(dump):
        rows += len(table) // width
        if rows > _MOST_ROWS:
            raise NotACoreError(f"more than {_MOST_ROWS} rows")
        if kind == _GRIDS:
            grids += len(table) // width
        elif kind == _SMS and width >= _SM.size:
            for at in range(0, len(table) - width + 1, width):
                number, _, exception, valid, pc = _SM.unpack_from(table, at)
                if exception:
                    sms.append(SmException(number, exception, pc if valid else None))
        elif kind == _THREADS and width >= _THREAD_EXCEPTION.size:
            raised = raised or any(
                _THREAD_EXCEPTION.unpack_from(table, at)[0] for at in range(0, len(table) - width + 1, width)
            )
    return GpuCore(tuple(sms), grids, raised)


def _tables(dump: Dump) -> Iterator[tuple[int, bytes, int]]:
    """Kind, bytes and row width of each section that is a table of interest."""
    head = dump.read(0, _HEADER.size)
    if len(head) < _HEADER.size:
        raise NotACoreError(f"{len(head)} bytes are no ELF header")
    magic, width, order, _, _, _, kind, machine, _, _, _, start, _, _, _, _, entry, count, _ = _HEADER.unpack(head)
    if (magic, width, order) != (_MAGIC, _CLASS_64, _LITTLE_ENDIAN):
        raise NotACoreError("no 64-bit little-endian ELF file")
    if (kind, machine) != (_CORE, _CUDA):
        raise NotACoreError(f"ELF type {kind} of machine {machine} is no GPU core dump")
    if not _SECTION.size <= entry <= _WIDEST_ENTRY:
        raise NotACoreError(f"section headers of {entry} bytes")
    if count == _EXTENDED and start:
        # Offsets are the file's word: the kernel takes none that a file cannot have.
        if start + _SECTION.size > dump.size:
            raise NotACoreError(f"section headers at {start}, past {dump.size} bytes")
        count = _section(dump.read(start, _SECTION.size), 0)[5]
    if count > _MOST_SECTIONS or start + count * entry > dump.size:
        raise NotACoreError(f"{count} section headers do not fit into {dump.size} bytes")
    headers = dump.read(start, count * entry)
    left = _MOST_BYTES
    for index in range(count):
        _, sort, _, _, offset, size, _, _, _, row = _section(headers, index * entry)
        if sort in (_SMS, _GRIDS, _THREADS) and row:
            left -= size
            if offset + size > dump.size or left < 0:
                raise NotACoreError(f"section {index} reaches past the end, or is too long")
            yield sort, dump.read(offset, size), row


def _section(view: bytes, at: int) -> tuple[int, ...]:
    if at + _SECTION.size > len(view):
        raise NotACoreError("the section headers are cut short")
    return _SECTION.unpack_from(view, at)
