"""Where regions lie and of which chunks they consist. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

FIRST: Final = 0x2000_0000_0000
LAST: Final = 0x5000_0000_0000
"""Regions are mapped between these addresses, which Linux leaves alone on x86-64: programs and heaps are loaded from
0x55.. on, libraries and CUDA's own memory lie below 0x7fff.., and address sanitizers use what is below 0x1001.. or from
0x6000.. on."""

STEP: Final = 1 << 30
"""Every region starts at a multiple of it, bytes."""


class Range(NamedTuple):
    """Addresses from ``start`` up to, but without, ``end``."""

    start: int
    end: int


class NoRoomError(Exception):
    """No free range of that size between `FIRST` and `LAST`."""


def rounded(size: int, unit: int) -> int:
    """``size`` or the next multiple of ``unit`` above it."""
    return -(-size // unit) * unit


def chunk_sizes(size: int, granularity: int, largest: int | None) -> tuple[int, ...]:
    """Sizes of the chunks for ``size`` bytes (at least 1), none of them above ``largest`` (None: one chunk).

    All are multiples of ``granularity``; ``largest`` is rounded down to one, but not below it.
    """
    if size < 1 or (largest is not None and largest < 1):
        raise ValueError(f"{size} bytes in chunks of {largest}: both must be at least 1")
    whole = rounded(size, granularity)
    most = whole if largest is None else max(largest // granularity, 1) * granularity
    full, rest = divmod(whole, most)
    return (most,) * full + ((rest,) if rest else ())


def pieces(va: int, sizes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Address and size of each chunk, one behind the other from ``va`` on."""
    for size in sizes:
        yield va, size
        va += size


def room(size: int) -> int:
    """Addresses to reserve for a region: whole steps, since the CUDA driver places small reservations as it likes."""
    return rounded(size, STEP)


def place(size: int, taken: Sequence[Range]) -> int:
    """The lowest address for ``size`` bytes that touches nothing of ``taken``; `NoRoomError`."""
    at = FIRST
    for start, end in sorted(taken):
        if at + size <= start:
            break
        at = max(at, rounded(end, STEP))
    if at + size > LAST:
        raise NoRoomError(f"no {size} free bytes between {FIRST:#x} and {LAST:#x}")
    return at
