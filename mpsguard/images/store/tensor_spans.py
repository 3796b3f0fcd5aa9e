"""Where the tensors of a region are in a file, so that a region is read or written piece by piece, each once."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mpsguard.images.store.pieces import piece_count, piece_size


class Span(NamedTuple):
    """Bytes of a region that are also in a file."""

    at: int
    """In the region."""
    size: int
    in_file: int
    """Where they are in the file."""


def by_piece(spans: Iterable[Span], size: int) -> Iterator[tuple[int, list[Span]]]:
    """Yield, for each piece of a region of ``size`` bytes, its size and the spans within it, relative to it."""
    waiting = sorted((span for span in spans if span.size), reverse=True)
    active: list[Span] = []
    start = 0
    for index in range(piece_count(size)):
        length = piece_size(size, index)
        while waiting and waiting[-1].at < start + length:
            active.append(waiting.pop())
        yield length, [_within(span, start, length) for span in active]
        start += length
        active = [span for span in active if span.at + span.size > start]


def _within(span: Span, start: int, length: int) -> Span:
    low, high = max(span.at, start), min(span.at + span.size, start + length)
    return Span(low - start, high - low, span.in_file + low - span.at)
