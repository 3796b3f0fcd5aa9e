"""Addresses and chunk sizes of regions. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

FIRST: Final = 0x2000_0000_0000
LAST: Final = 0x5000_0000_0000
"""Regions are mapped between these addresses, which Linux leaves free on x86-64: programs and heaps start at 0x55..,
libraries and CUDA's own memory lie below 0x7fff.., and address sanitizers use addresses below 0x1001.. or above
0x6000..."""

STEP: Final = 1 << 30
"""Every region starts at a multiple of this many bytes."""


class Range(NamedTuple):
    """Addresses from ``start`` up to, but not including, ``end``."""

    start: int
    end: int


class NoRoomError(Exception):
    """No free range of that size between `FIRST` and `LAST`."""


def rounded(size: int, unit: int) -> int:
    """Return ``size`` rounded up to a multiple of ``unit``."""
    return -(-size // unit) * unit


def chunk_sizes(size: int, granularity: int, largest: int | None) -> tuple[int, ...]:
    """Return the sizes of the chunks for ``size`` bytes (at least 1), all multiples of ``granularity``.

    ``largest``: maximum size of a chunk, rounded down to a multiple of ``granularity`` but at least one; None: one
    chunk.
    """
    if size < 1 or (largest is not None and largest < 1):
        raise ValueError(f"{size} bytes in chunks of {largest}: both must be at least 1")
    whole = rounded(size, granularity)
    most = whole if largest is None else max(largest // granularity, 1) * granularity
    full, rest = divmod(whole, most)
    return (most,) * full + ((rest,) if rest else ())


def pieces(va: int, sizes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield address and size of each chunk, back to back from ``va`` on."""
    for size in sizes:
        yield va, size
        va += size


def room(size: int) -> int:
    """Return the bytes to reserve for a region: whole steps.

    The CUDA driver ignores the requested address for smaller reservations.
    """
    return rounded(size, STEP)


def place(size: int, taken: Sequence[Range]) -> int:
    """Return the lowest address for ``size`` bytes that overlaps nothing in ``taken``; raise NoRoomError."""
    at = FIRST
    for start, end in sorted(taken):
        if at + size <= start:
            break
        at = max(at, rounded(end, STEP))
    if at + size > LAST:
        raise NoRoomError(f"no {size} free bytes between {FIRST:#x} and {LAST:#x}")
    return at
