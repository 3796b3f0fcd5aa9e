"""What the kernel log tells of memory faults, and over which time it is known to tell all."""

from bisect import bisect_left, insort
from math import inf
from typing import Final

from mpsguard.guard.evidence import Evidence, LogRead, Source, Xid

_MMU_XID: Final = 31

_MOST: Final = 64
"""Lines, and times without a gap, that are remembered."""


class FaultLog:
    """Memory faults of the kernel log and the times over which it was read. Evidence may be added in any order."""

    def __init__(self) -> None:
        self._faults: list[tuple[float, float, str | None]] = []
        """Earliest and latest time of each, and its GPU; ascending."""
        self._forgotten = -inf
        """Latest time of a fault that is not remembered any more."""
        self._read: dict[float, float] = {}
        """Beginnings and ends of times without a gap."""

    def add(self, evidence: Evidence) -> None:
        """Add one observation; most are not of the kernel log."""
        if evidence.source is not Source.KERNEL_LOG:
            return
        what = evidence.what
        if isinstance(what, LogRead):
            self._read[what.since] = max(evidence.observed_at, self._read.get(what.since, what.since))
            while len(self._read) > _MOST:
                del self._read[min(self._read)]
        elif isinstance(what, Xid) and what.number == _MMU_XID:
            at = evidence.observed_at if evidence.happened_at is None else evidence.happened_at
            fault = (at - evidence.uncertainty, at + evidence.uncertainty, evidence.gpu)
            if fault not in self._faults:
                insort(self._faults, fault, key=lambda each: each[0])
            if len(self._faults) > _MOST:
                self._forgotten = max(self._forgotten, self._faults.pop(0)[1])

    def read_until(self) -> float:
        """Return until when it was read at all."""
        return max(self._read.values(), default=-inf)

    def was_read(self, since: float, until: float) -> bool:
        """Return whether all that was logged between two times is known."""
        return any(begin <= since and until <= end for begin, end in self._read.items())

    def had_fault(self, since: float, until: float, gpu: str | None) -> bool:
        """Return whether there was, or may have been, a memory fault of a GPU between two times.

        Args:
            since: beginning.
            until: end.
            gpu: PCI address; None: of any. A fault without a GPU may have been of each.
        """
        if since <= self._forgotten:
            return True
        last = bisect_left(self._faults, until, key=lambda each: each[0])
        return any(end >= since and (gpu is None or of in (None, gpu)) for _, end, of in self._faults[:last])
