"""Pieces: the units in which regions are compared, copied and stored. Pure.

The pieces of all regions of a checkpoint are numbered through, region by region; the last piece of a region may be
shorter than the others.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from mpsguard.images.store.pieces import PIECE_SIZE, piece_count

PIECE: Final = PIECE_SIZE
"""Bytes: the same pieces as those of the image store."""


class RegionSpan(NamedTuple):
    """A region's place among the numbered pieces."""

    name: str
    size: int
    """Bytes of the region."""
    first: int
    """Number of its first piece."""

    @property
    def end(self) -> int:
        """Number behind its last piece."""
        return self.first + piece_count(self.size)

    def numbers(self, offset: int, size: int) -> range:
        """Return the numbers of the pieces that these bytes of the region touch; raise ValueError outside of it."""
        within = touched(offset, size, self.size)
        return range(self.first + within.start, self.first + within.stop)

    def bounds(self, number: int) -> tuple[int, int]:
        """Return offset and size, in the region, of the piece with that number."""
        offset = (number - self.first) * PIECE
        return offset, min(PIECE, self.size - offset)


def touched(offset: int, size: int, whole: int) -> range:
    """Return the indices of the pieces that a write touches; raise ValueError if it is not within ``whole`` bytes."""
    if offset < 0 or size < 0 or offset + size > whole:
        raise ValueError(f"{size} bytes from {offset} on are not within {whole}")
    return range(offset // PIECE, piece_count(offset + size)) if size else range(0)


def spans(regions: Iterable[tuple[str, int]]) -> tuple[RegionSpan, ...]:
    """Number the pieces of regions, given as names and sizes in bytes, in that order."""
    found, first = [], 0
    for name, size in regions:
        found.append(RegionSpan(name, size, first))
        first = found[-1].end
    return tuple(found)


def span_of(numbered: Sequence[RegionSpan], number: int) -> RegionSpan:
    """Return the region of a piece; raise IndexError if there is none."""
    for span in numbered:
        if span.first <= number < span.end:
            return span
    raise IndexError(f"no piece {number}")


def runs(numbers: Iterable[int], most: int) -> Iterator[range]:
    """Yield ascending numbers as runs of consecutive ones, each at most ``most`` long."""
    start = stop = -1
    for number in numbers:
        if number == stop and stop - start < most:
            stop += 1
            continue
        if stop > start:
            yield range(start, stop)
        start, stop = number, number + 1
    if stop > start:
        yield range(start, stop)
