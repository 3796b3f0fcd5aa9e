"""The record of a session's forward state: shared memory that one process writes, and anybody reads at any moment.

Layout, in 8-byte words of the machine's own byte order: a header, then `SLOTS` slots. A slot is commit, generation,
length and checksum in one word, a spare word, and then the state. The writer takes the slots in turn: it sets commit
to 0, writes the rest, and sets commit to the state's sequence number. The reader takes the highest commit whose
checksum is right and that is still the same after the state was copied.

Why that is whole at any moment, also if the writer was SIGKILLed in between:

* The last published state is in a slot that the writer does not touch before `SLOTS` - 1 others were written.
* What a dead process has stored is what its instructions up to one point stored, in their order, whatever the processor
  (interrupts are precise, and the kernel's way out of a process has full barriers). So a slot that is half written has
  commit 0.
* A living writer is watched from another processor. x86 shows stores in order; ARM need not, so a commit may be seen
  before the state it stands for. Then the checksum (CRC-32 over sequence, generation, length and state) is wrong, and
  the reader looks again.

A generation has a record of its own: what a writer that was fenced off stores in the old one, nobody reads.
"""

import struct
import threading
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

from mpsguard.vault.errors import StaleGenerationError, TooLargeError

SLOTS: Final = 8
"""A reader has as long as it takes to publish so many states less one before it must look again."""

_MAGIC: Final = 0x4D50_5347_5354_4131
_HEADER: Final = struct.Struct("=5Q")
"""Magic, capacity, generation, a spare word, and whether the generation is over."""
_HEADER_BYTES: Final = 64
_OVER_WORD: Final = 4
_OVER_AT: Final = _OVER_WORD * 8
_SLOT: Final = struct.Struct("=4Q")
_WORD: Final = struct.Struct("=Q")
_CHECKED: Final = struct.Struct("=3Q")
_ALIGNMENT: Final = 64
_LENGTH_MASK: Final = 0xFFFF_FFFF
_TRIES: Final = 64

Read = Callable[[int, int], bytes]
"""``read(offset, length)``: a copy of so many bytes of the record."""


class State(NamedTuple):
    """A forward state."""

    sequence: int
    """Number of publications in the session up to this one, over all generations."""
    generation: int
    """Of the writer that published it."""
    state: bytes


def size(capacity: int) -> int:
    """Bytes of a record for states of up to ``capacity`` bytes. Only those that are written take up memory."""
    return _HEADER_BYTES + SLOTS * _stride(capacity)


def blank(capacity: int, generation: int, first: State | None) -> list[tuple[int, bytes]]:
    """What has to stand where in a new record (all else is zero), with the state that was carried over, if any."""
    pieces = [(0, _HEADER.pack(_MAGIC, capacity, generation, 0, 0))]
    if first is not None and first.sequence:
        pieces.append((slot_at(first.sequence, capacity), slot_bytes(first)))
    return pieces


def slot_bytes(state: State) -> bytes:
    """A slot as it is when its state is published."""
    word = _checked_length(state.sequence, state.generation, state.state)
    return _SLOT.pack(state.sequence, state.generation, word, 0) + state.state


def slot_at(sequence: int, capacity: int) -> int:
    """Where the slot of a sequence number begins."""
    return _HEADER_BYTES + sequence % SLOTS * _stride(capacity)


OVER: Final = (_OVER_AT, _WORD.pack(1))
"""What the vault writes where, so that a writer that was fenced off hears of it at its next publication."""


def is_over(read: Read) -> bool:
    """Whether the writer of this record was fenced off."""
    return read(_OVER_AT, 8) != bytes(8)


def latest(read: Read, capacity: int) -> State | None:
    """The newest whole state; None if there is none.

    Every byte may be a stranger's: nothing is believed but by its checksum, and nothing is read past ``capacity``.
    """
    best: State | None = None
    for _ in range(_TRIES):
        seen: list[tuple[int, int]] = []
        for slot in range(SLOTS):
            (commit,) = _WORD.unpack(read(_HEADER_BYTES + slot * _stride(capacity), 8))
            if commit:
                seen.append((commit, slot))
        moved = False
        for commit, slot in sorted(seen, reverse=True):
            state, changed = _read_slot(read, commit, slot, capacity)
            moved |= changed
            if state is not None:
                if not moved:
                    return state
                # The writer came round while we read: there is a newer one. Should it keep us from ever getting that,
                # this one was whole, too.
                if best is None or state.sequence > best.sequence:
                    best = state
                break
        if not moved:
            return best
    return best


def _read_slot(read: Read, commit: int, slot: int, capacity: int) -> tuple[State | None, bool]:
    """The state in a slot, None if it is not whole; and whether the writer may be at work on it under our eyes."""
    at = _HEADER_BYTES + slot * _stride(capacity)
    again, generation, word, _ = _SLOT.unpack(read(at, _SLOT.size))
    length = word & _LENGTH_MASK
    if again != commit:
        return None, True
    if commit % SLOTS != slot or length > capacity:
        return None, False
    state = read(at + _SLOT.size, length)
    if _WORD.unpack(read(at, 8))[0] != commit:
        return None, True
    if len(state) != length or _checked_length(commit, generation, state) != word:
        # Another processor's stores that arrive out of order, or a slot that somebody has spoilt: looking again tells.
        return None, True
    return State(commit, generation, state), False


class Publisher:
    """The writer's end of a record, over memory that is mapped shared and writable, and at least `size` long."""

    __slots__ = ("_body", "_capacity", "_generation", "_lock", "_over", "_sequence", "_slots", "_view")

    def __init__(self, memory: memoryview, capacity: int, generation: int) -> None:
        """Go on from the newest state that is there."""
        view = memory.cast("B")
        newest = latest(lambda at, length: bytes(view[at : at + length]), capacity)
        self._sequence = 0 if newest is None else newest.sequence
        self._generation = generation
        self._capacity = capacity
        self._view = view
        self._over = view[:_HEADER_BYTES].cast("Q")
        self._slots: list[memoryview] = []
        self._body: list[memoryview] = []
        for slot in range(SLOTS):
            at = _HEADER_BYTES + slot * _stride(capacity)
            self._slots.append(view[at : at + _SLOT.size].cast("Q"))
            self._body.append(view[at + _SLOT.size : at + _SLOT.size + capacity])
        self._lock = threading.Lock()

    def publish(self, state: bytes) -> int:
        """Make ``state`` the newest and return its sequence number; from then on it counts, whatever happens.

        TooLargeError if it does not fit. StaleGenerationError if the writer was fenced off: then the state counts for
        nothing, unless that happened in this very moment; in no case may the caller act as if it counted.
        """
        length = len(state)
        if length > self._capacity:
            raise TooLargeError(f"{length} bytes of state; this session takes at most {self._capacity}")
        with self._lock:
            if self._over[_OVER_WORD]:
                raise StaleGenerationError(f"fenced off: generation {self._generation} is over")
            sequence = self._sequence + 1
            generation = self._generation
            slot = self._slots[sequence % SLOTS]
            # Each of these is one aligned 8-byte store: memoryview copies a native "Q" item as a whole.
            slot[0] = 0
            self._body[sequence % SLOTS][:length] = state
            slot[1] = generation
            slot[2] = length | zlib.crc32(state, zlib.crc32(_CHECKED.pack(sequence, generation, length))) << 32
            slot[0] = sequence
            self._sequence = sequence
        # Who fences marks the record first and looks at the slots then. So does it the other way round here, with the
        # lock's release as the barrier in between: if the mark is not there yet, this state was seen.
        if self._over[_OVER_WORD]:
            raise StaleGenerationError(f"fenced off: generation {generation} is over")
        return sequence

    def close(self) -> None:
        """Let go of the memory, so that it can be unmapped."""
        for view in (*self._slots, *self._body, self._over, self._view):
            view.release()


def _checked_length(sequence: int, generation: int, state: bytes) -> int:
    head = _CHECKED.pack(sequence, generation, len(state))
    return len(state) | zlib.crc32(state, zlib.crc32(head)) << 32


def _stride(capacity: int) -> int:
    return -(-(_SLOT.size + capacity) // _ALIGNMENT) * _ALIGNMENT
