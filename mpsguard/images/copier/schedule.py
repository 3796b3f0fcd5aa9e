"""Which piece is copied next, and what became of each: the state machine of one checkpoint. Pure.

    PENDING -> COPYING -> HELD -> STORED
       ^          |        |
       +----------+        +-> torn: the checkpoint cannot be committed any more
      set aside meanwhile

A piece is *held* when the copier has its bytes in memory of its own. A piece goes from PENDING to STORED if the store
has its content already.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

PENDING, COPYING, HELD, STORED = range(4)
_WANTED: Final = 1


class Claim(NamedTuple):
    """Consecutive pieces to be copied, from their region (``slot`` None) or from consecutive slots of the spare."""

    pieces: range
    slot: int | None


class Schedule:
    """The pieces of one checkpoint. Not for use by several threads at once."""

    def __init__(self, digests: Sequence[bytes], breaks: Sequence[int]) -> None:
        """Begin with all pieces pending.

        Args:
            digests: of every piece, at the cut.
            breaks: numbers of the pieces that begin a region: no claim reaches over one.
        """
        self._digests = digests
        self._breaks = frozenset(breaks)
        self._state = bytearray(len(digests))
        self._cursor = 0
        self._wanted_cursor = 0
        self._wanted_count = 0
        self._left = len(digests)
        self.copied = 0
        """Pieces that were copied and stored."""
        self.reused = 0
        """Pieces that were not copied, since the store had their content."""
        self.torn: int | None = None
        """A piece that had not the content of the cut when it was copied."""

    @property
    def is_whole(self) -> bool:
        """Whether every piece is in the store with its content at the cut."""
        return self._left == 0 and self.torn is None

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to be done."""
        return self._left == 0 or self.torn is not None

    @property
    def is_drained(self) -> bool:
        """Whether no piece of the session's memory is needed any more."""
        return PENDING not in self._state and COPYING not in self._state

    def reuse(self, numbers: Sequence[int]) -> None:
        """Record that the store has pending pieces' content at the cut."""
        for number in numbers:
            assert self._state[number] == PENDING
            self._state[number] = STORED
        self._left -= len(numbers)
        self.reused += len(numbers)

    def claim(
        self,
        wanted: bytes,
        slot_of: Callable[[int], int | None],
        most: int,
        has: Callable[[bytes], bool],
    ) -> tuple[list[int], Claim | None]:
        """Return the pieces that turned out to be in the store already, and what to copy next (None: nothing now).

        Args:
            wanted: a byte for each piece; those with a 1 come first.
            slot_of: the slot of the spare memory that has the piece, or None.
            most: largest number of pieces in a claim.
            has: whether the store has the content with that digest.
        """
        found: list[int] = []
        while self.torn is None:
            first = self._next(wanted)
            if first is None:
                return found, None
            if has(self._digests[first]):
                self.reuse((first,))
                found.append(first)
                continue
            slot = slot_of(first)
            stop = first + 1
            while (
                stop - first < most
                and stop < len(self._state)
                and stop not in self._breaks
                and self._state[stop] == PENDING
                and slot_of(stop) == (None if slot is None else slot + stop - first)
                and not has(self._digests[stop])
            ):
                stop += 1
            self._state[first:stop] = bytes([COPYING]) * (stop - first)
            return found, Claim(range(first, stop), slot)
        return found, None

    def held(self, claim: Claim, slot_of: Callable[[int], int | None]) -> list[int]:
        """Record that a claim's bytes were copied; return the pieces that count.

        The others were set aside while they were copied from their region, so the writer may have written to them:
        they are pending again. ``slot_of`` must look after the copy has completed.
        """
        kept = []
        for number in claim.pieces:
            assert self._state[number] == COPYING
            if claim.slot is None and slot_of(number) is not None:
                self._state[number] = PENDING
                self._cursor = min(self._cursor, number)
                self._wanted_cursor = min(self._wanted_cursor, number)
            else:
                self._state[number] = HELD
                kept.append(number)
        return kept

    def stored(self, number: int, digest: bytes) -> bool:
        """Record the digest of the bytes that were stored for a held piece; return whether they are the cut's."""
        assert self._state[number] == HELD
        if digest != self._digests[number]:
            self.torn = number if self.torn is None else self.torn
            return False
        self._state[number] = STORED
        self._left -= 1
        self.copied += 1
        return True

    def _next(self, wanted: bytes) -> int | None:
        if (count := wanted.count(_WANTED)) != self._wanted_count:
            self._wanted_count, self._wanted_cursor = count, 0
        at = wanted.find(_WANTED, self._wanted_cursor)
        while at >= 0 and self._state[at] != PENDING:
            at = wanted.find(_WANTED, at + 1)
        self._wanted_cursor = len(wanted) if at < 0 else at
        if at >= 0:
            return at
        at = self._state.find(PENDING, self._cursor)
        self._cursor = len(self._state) if at < 0 else at
        return None if at < 0 else at
