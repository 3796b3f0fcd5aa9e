"""GPU core dumps as the driver writes them, made up: for tests, on machines without a GPU.

The form is `cudacoredump.h` of the CUDA toolkit; rows have the widths that driver 580 writes.
"""

import struct
from collections.abc import Sequence
from typing import Final

_HEADER: Final = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SMS, _GRIDS, _THREADS = 0x8000000B, 0x8000000C, 0x8000000F
_SM_ROW, _GRID_ROW, _THREAD_ROW = 48, 136, 56


def sm_row(sm: int, exception: int = 0, pc: int | None = None) -> bytes:
    """One SM: its number, its exception (0: none), the address of the instruction."""
    return struct.pack("<IIIIQ", sm, 0, exception, int(pc is not None), pc or 0).ljust(_SM_ROW, b"\0")


def thread_row(exception: int = 0) -> bytes:
    """One thread of a kernel of the dumping process."""
    return struct.pack("<32xI", exception).ljust(_THREAD_ROW, b"\0")


def core_dump(
    *, sms: Sequence[bytes] = (), threads: Sequence[bytes] = (), grids: int = 0, extended: bool = False
) -> bytes:
    """A dump; ``extended``: with the number of sections where files with very many of them have it."""
    tables = [
        (_SMS, b"".join(sms), _SM_ROW),
        (_GRIDS, bytes(_GRID_ROW) * grids, _GRID_ROW),
        *((_THREADS, row, _THREAD_ROW) for row in threads),
    ]
    body, headers, at = b"", [], _HEADER.size
    for kind, table, row in tables:
        headers.append(_SECTION.pack(0, kind, 0, 0, at, len(table), 0, 0, 1, row))
        body += table
        at += len(table)
    count = len(headers) + 1
    headers.insert(0, _SECTION.pack(0, 0, 0, 0, 0, count if extended else 0, 0, 0, 0, 0))
    ident = (b"\x7fELF", 2, 1, 1, 0x33, 7)
    header = _HEADER.pack(
        *ident, 4, 190, 1, 0, 0, at, 0, _HEADER.size, 0, 0, _SECTION.size, 0 if extended else count, 0
    )
    return header + body + b"".join(headers)
