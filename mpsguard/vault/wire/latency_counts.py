"""Latencies of a session's requests: a histogram in a region of the session, which its writer counts in.

The region is host memory with one chunk, named `REGION`, so owner, quota, storage and takeover are those of any region.
Layout, in 8-byte words of native byte order: magic, the sum of all latencies in nanoseconds, spare words, and one count
for each bucket. Every store is one aligned word, so a reader sees each number whole; a process that dies between two
stores leaves a sum without its last request.

The guard reads a copy with pread(2) and never maps it: memory of another process must not be able to raise SIGBUS here.
Any content is accepted, since a wrong number is a wrong number about its owner's own session only.
"""

import itertools
import os
import struct
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from mpsguard.vault.wire.errors import LayoutMismatchError
from mpsguard.vault.wire.region import RegionLayout, SessionRecord

REGION: Final = "mpsguard.latency"
"""Name of the region in its session."""
_SHORTEST: Final = 1e-5
"""10 us: less than one launch of a kernel and a wait for it."""
_LONGEST: Final = 100.0
_STEPS: Final = 814
"""Number of buckets between the two: each is 2 % wider than the one before, so a change of a few percent shows."""
BOUNDS: Final[tuple[float, ...]] = tuple(
    _SHORTEST * (_LONGEST / _SHORTEST) ** (step / _STEPS) for step in range(_STEPS + 1)
)
"""Upper bounds of the buckets in seconds, in ascending order; one more bucket has all that took longer."""

_MAGIC: Final = 0x4D50_5347_4C41_5431
TOTAL_WORD: Final = 1
"""Index of the sum of all latencies."""
FIRST_COUNT: Final = 8
"""Index of the first bucket's count; those before it but magic and sum are spare."""
_WORDS: Final = FIRST_COUNT + len(BOUNDS) + 1
_PAGE: Final = 4096
SIZE: Final = -(-_WORDS * 8 // _PAGE) * _PAGE
"""Bytes of the region."""
LAYOUT: Final = RegionLayout((SIZE,))
HEADER: Final = struct.pack("=Q", _MAGIC)
"""First bytes of the region."""
_CONTENT: Final = struct.Struct(f"={_WORDS}Q")


class LatencyCounts(msgspec.Struct, frozen=True):
    """Latencies of all requests of a session so far."""

    counts: tuple[int, ...]
    """Number of requests by bucket (`BOUNDS`)."""
    total_seconds: float
    """Sum of all latencies."""

    def requests(self, since: "LatencyCounts | None" = None) -> int:
        """Return the number of requests; with an earlier reading ``since``, of those after it."""
        return sum(self.counts if since is None else self.after(since).counts)

    def percentile(self, fraction: float, since: "LatencyCounts | None" = None) -> float | None:
        """Return the latency in seconds that ``fraction`` of the requests did not exceed; None without requests.

        With an earlier reading ``since``, of the requests after it. The result is exact to a bucket's width of 2 %,
        from 10 us to 100 s, which stands for all that is longer.
        """
        window = self.counts if since is None else self.after(since).counts
        total = sum(window)
        # Not beyond the last one by rounding: the numbers may be larger than a float's precision.
        wanted = min(fraction * total, total)
        for bucket, (count, upto) in enumerate(zip(window, itertools.accumulate(window), strict=True)):
            if count and upto >= wanted:
                if bucket >= len(BOUNDS):
                    return BOUNDS[-1]
                least = BOUNDS[bucket - 1] if bucket else 0.0
                within = min(max((wanted - (upto - count)) / count, 0.0), 1.0)
                return min(least + (BOUNDS[bucket] - least) * within, BOUNDS[bucket])
        return None

    def after(self, since: "LatencyCounts") -> "LatencyCounts":
        """Return the requests after an earlier reading ``since``."""
        # Fewer than before: the session was released and made again, or its owner wrote there.
        pairs = itertools.zip_longest(self.counts, since.counts, fillvalue=0)
        counts = tuple(max(now - before, 0) for now, before in pairs)
        return LatencyCounts(counts, max(self.total_seconds - since.total_seconds, 0.0))


def merged(readings: Sequence[LatencyCounts]) -> LatencyCounts:
    """Return the requests of several sessions together."""
    columns = itertools.zip_longest(*(each.counts for each in readings), fillvalue=0)
    return LatencyCounts(tuple(map(sum, columns)), sum(each.total_seconds for each in readings))


def bucket_of(seconds: float) -> int:
    """Return the index of the bucket for a latency."""
    return bisect_left(BOUNDS, seconds)


def check_layout(layout: RegionLayout) -> None:
    """Raise LayoutMismatchError unless a region of that layout can be a histogram."""
    if layout.sizes != LAYOUT.sizes or layout.gpu is not None:
        raise LayoutMismatchError(f"region {REGION!r} is not of the layout of latencies: one memfd of {SIZE} bytes")


def read(session: SessionRecord, chunks: Mapping[int, tuple[int, ...]]) -> LatencyCounts | None:
    """Return the latencies of a session, or None if it counts none.

    Args:
        session: the session.
        chunks: descriptors of the chunks by region id.
    """
    region = session.regions.get(REGION)
    if region is None or region.layout.sizes != LAYOUT.sizes or region.layout.gpu is not None:
        return None
    try:
        content = os.pread(chunks[region.id][0], _CONTENT.size, 0)
    except OSError:
        return None
    return decoded_counts(content)


def decoded_counts(content: bytes) -> LatencyCounts | None:
    """Return the latencies in a region's content; None if it is no histogram."""
    if len(content) != _CONTENT.size:
        return None
    words = _CONTENT.unpack(content)
    if words[0] != _MAGIC:
        return None
    return LatencyCounts(words[FIRST_COUNT:], words[TOTAL_WORD] / 1e9)
