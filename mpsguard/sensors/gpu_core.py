"""GPU core dumps, taken apart without cuda-gdb: which SMs stopped at which instruction, and in whose kernel.

Format: `cudacoredump.h` of the CUDA toolkit (the debugger's extras), an ELF file of machine 190 with a section a table.
What the tables say under MPS was measured on an H200 with driver 580.159.04:

* The table of SMs is of the whole GPU: every process's dump has the exceptions of all SMs, with the address of the
  instruction in the address space of the process that was at fault.
* Grids and threads are of the dumping process alone: an exception in a thread is of its own kernel.
* `trap` leaves neither; the process that did it is then the only one with a grid on the GPU.
"""

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

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
_MOST_SECTIONS: Final = 1 << 20
_MOST_ROWS: Final = 1 << 20

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
    """SMs of the whole GPU with an exception, whoever's."""
    grids: int
    """Kernels of the dumping process that were on the GPU."""
    raised: bool
    """Whether a thread of the dumping process has an exception."""


def exception_name(number: int) -> str:
    """A `CUDBGException_t` in words."""
    return _EXCEPTIONS.get(number, f"exception {number}")


def parse(data: bytes | memoryview) -> GpuCore:
    """Read a dump. Its bytes are a stranger's: NotACoreError for whatever is wrong with them, and nothing else."""
    view = memoryview(data)
    sms: list[SmException] = []
    grids = 0
    raised = False
    rows = 0
    for kind, table, width in _tables(view):
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


def _tables(view: memoryview) -> Iterator[tuple[int, memoryview, int]]:
    """Kind, bytes and row width of each section that is a table of interest."""
    if len(view) < _HEADER.size:
        raise NotACoreError(f"{len(view)} bytes are no ELF header")
    magic, width, order, _, _, _, kind, machine, _, _, _, start, _, _, _, _, entry, count, _ = _HEADER.unpack_from(view)
    if (magic, width, order) != (_MAGIC, _CLASS_64, _LITTLE_ENDIAN):
        raise NotACoreError("no 64-bit little-endian ELF file")
    if (kind, machine) != (_CORE, _CUDA):
        raise NotACoreError(f"ELF type {kind} of machine {machine} is no GPU core dump")
    if entry < _SECTION.size:
        raise NotACoreError(f"section headers of {entry} bytes")
    if count == _EXTENDED and start:
        count = _section(view, start)[5]
    if count > _MOST_SECTIONS or start + count * entry > len(view):
        raise NotACoreError(f"{count} section headers do not fit into {len(view)} bytes")
    for index in range(count):
        _, sort, _, _, offset, size, _, _, _, row = _section(view, start + index * entry)
        if sort in (_SMS, _GRIDS, _THREADS) and row:
            if offset + size > len(view):
                raise NotACoreError(f"section {index} reaches past the end")
            yield sort, view[offset : offset + size], row


def _section(view: memoryview, at: int) -> tuple[int, ...]:
    if at + _SECTION.size > len(view):
        raise NotACoreError("the section headers are cut short")
    return _SECTION.unpack_from(view, at)
