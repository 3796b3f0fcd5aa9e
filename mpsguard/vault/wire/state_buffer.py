"""The state buffer of a session: shared memory that one process writes and any process reads at any moment.

Layout, in 8-byte words of native byte order: a header, then `SLOTS` slots. A slot is commit, generation, length and
checksum in one word, a spare word, and then the state. The writer uses the slots in turn: it sets commit to 0, writes
the rest, and sets commit to the state's sequence number. The reader takes the highest commit with a right checksum that
is unchanged after the state was copied.

Why a whole state can be read at any moment, also if the writer was SIGKILLed:

* The last published state is in a slot that the writer does not touch before `SLOTS` - 1 others were written.
* The stores of a dead process are those of its instructions up to one point, in program order, on any processor
  (interrupts are precise, and the kernel's exit path has full barriers). So a half-written slot has commit 0.
* A living writer is observed from another processor. x86 shows stores in order; ARM need not, so a commit may be seen
  before its state. Then the checksum (CRC-32 over sequence, generation, length and state) is wrong, and the reader
  retries. A slot that is wrong and reads the same twice is not being written: it is corrupt.

A writer decides what a reader has to read. So the guard reads no more than it allowed beforehand (`most`).

Each generation has its own state buffer: stores of a fenced writer go to the old one, which is no longer read. That a
generation is over stands in the session's page (`mpsguard.vault.wire.session_page`).
"""

import struct
import threading
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

from mpsguard.vault.wire.errors import StaleGenerationError, TooLargeError

SLOTS: Final = 8
"""A reader must copy a state before the writer has published `SLOTS` - 1 further ones; otherwise it retries."""

_MAGIC: Final = 0x4D50_5347_5354_4131
_HEADER: Final = struct.Struct("=3Q")
"""Magic, capacity, generation."""
_HEADER_BYTES: Final = 64
_SLOT: Final = struct.Struct("=4Q")
_WORD: Final = struct.Struct("=Q")
_CHECKED: Final = struct.Struct("=3Q")
_ALIGNMENT: Final = 64
_LENGTH_MASK: Final = 0xFFFF_FFFF
_TRIES: Final = 64
GUARD_READS: Final = 2
"""Whole states that the guard reads to find the newest one. An honest writer leaves one slot at most that is not whole:
the one that it was writing."""

Read = Callable[[int, int], bytes]
"""``read(offset, length)`` returns a copy of ``length`` bytes of the buffer."""


class State(NamedTuple):
    """A forward state."""

    sequence: int
    """Number of publications in the session up to this one, over all generations."""
    generation: int
    """Generation of the writer that published it."""
    state: bytes


def size(capacity: int) -> int:
    """Return the size of a buffer for states of up to ``capacity`` bytes. Unwritten bytes take up no memory."""
    return _HEADER_BYTES + SLOTS * _stride(capacity)


def blank(capacity: int, generation: int, first: State | None) -> list[tuple[int, bytes]]:
    """Return the initial content of a new buffer as (offset, bytes) pieces, with the carried state if any.

    All other bytes are zero.
    """
    pieces = [(0, _HEADER.pack(_MAGIC, capacity, generation))]
    if first is not None and first.sequence:
        pieces.append((slot_at(first.sequence, capacity), slot_bytes(first)))
    return pieces


def slot_bytes(state: State) -> bytes:
    """Return the content of a slot with a published state."""
    word = _checked_length(state.sequence, state.generation, state.state)
    return _SLOT.pack(state.sequence, state.generation, word, 0) + state.state


def slot_at(sequence: int, capacity: int) -> int:
    """Return the offset of the slot for a sequence number."""
    return _HEADER_BYTES + sequence % SLOTS * _stride(capacity)


class _Slots:
    """Reads slots, and remembers which are corrupt and how much may still be read."""

    def __init__(self, read: Read, capacity: int, most: int | None) -> None:
        self._read = read
        self._capacity = capacity
        self._left = most
        self._wrong: dict[int, tuple[int, int, int, int]] = {}
        """What was read of slots with a wrong checksum, by slot."""

    def state(self, commit: int, slot: int) -> tuple[State | None, bool]:
        """Return the state in a slot (None if not whole), and whether the writer may be changing the slot.

        Raises:
            _ReadEnoughError: the state is longer than what may still be read.
        """
        at = _HEADER_BYTES + slot * _stride(self._capacity)
        again, generation, word, _ = _SLOT.unpack(self._read(at, _SLOT.size))
        length = word & _LENGTH_MASK
        if again != commit:
            return None, True
        if commit % SLOTS != slot or length > self._capacity:
            return None, False
        if self._left is not None:
            if length > self._left:
                raise _ReadEnoughError
            self._left -= length
        state = self._read(at + _SLOT.size, length)
        if _WORD.unpack(self._read(at, 8))[0] != commit:
            return None, True
        checked = _checked_length(commit, generation, state)
        if len(state) != length or checked != word:
            # Another processor's stores may arrive out of order, or the slot is corrupt: a further look tells which.
            found = (commit, generation, word, checked)
            same = self._wrong.get(slot) == found
            self._wrong[slot] = found
            return None, not same
        return State(commit, generation, state), False


class _ReadEnoughError(Exception):
    """As much was read as was allowed."""


def latest(read: Read, capacity: int, *, most: int | None = None) -> State | None:
    """Return the newest whole state, or None.

    The whole content is untrusted: it is accepted by checksum only, and nothing is read beyond ``capacity``.

    Args:
        read: reads the buffer.
        capacity: maximum size of a state in bytes.
        most: bytes of states that may be read in all; None: as many as it takes.
    """
    best: State | None = None
    slots = _Slots(read, capacity, most)
    for _ in range(_TRIES):
        seen: list[tuple[int, int]] = []
        for slot in range(SLOTS):
            (commit,) = _WORD.unpack(read(_HEADER_BYTES + slot * _stride(capacity), 8))
            if commit:
                seen.append((commit, slot))
        moved = False
        for commit, slot in sorted(seen, reverse=True):
            try:
                state, changed = slots.state(commit, slot)
            except _ReadEnoughError:
                return best
            moved |= changed
            if state is not None:
                if not moved:
                    return state
                # The writer published during the read, so a newer state exists. If the writer is too fast for every
                # further try, this whole state is the result.
                if best is None or state.sequence > best.sequence:
                    best = state
                break
        if not moved:
            return best
    return best


class Publisher:
    """The writer's side of a state buffer, over writable shared memory of at least `size` bytes."""

    __slots__ = ("_body", "_capacity", "_current", "_generation", "_lock", "_sequence", "_slots", "_view")

    def __init__(self, memory: memoryview, capacity: int, generation: int, current: memoryview) -> None:
        """Continue from the newest state in the buffer.

        Args:
            memory: the state buffer.
            capacity: maximum size of a state in bytes.
            generation: the generation that the buffer is of.
            current: one word: the session's generation at this moment; it stays the caller's.
        """
        view = memory.cast("B")
        newest = latest(lambda at, length: bytes(view[at : at + length]), capacity)
        self._sequence = 0 if newest is None else newest.sequence
        self._generation = generation
        self._capacity = capacity
        self._view = view
        self._current = current
        self._slots: list[memoryview] = []
        self._body: list[memoryview] = []
        for slot in range(SLOTS):
            at = _HEADER_BYTES + slot * _stride(capacity)
            self._slots.append(view[at : at + _SLOT.size].cast("Q"))
            self._body.append(view[at + _SLOT.size : at + _SLOT.size + capacity])
        self._lock = threading.Lock()

    def publish(self, state: bytes) -> int:
        """Publish ``state`` and return its sequence number; it counts as soon as this returns.

        Raises:
            TooLargeError: it exceeds the session's capacity.
            StaleGenerationError: the writer was fenced off. The state does not count, unless the fencing happened
                during this call; the caller must in no case act as if it counted.
        """
        length = len(state)
        if length > self._capacity:
            raise TooLargeError(f"{length} bytes of state; this session was made with capacity={self._capacity}")
        with self._lock:
            if self._current[0] != self._generation:
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
        # The vault changes the generation first and then reads the slots. This side uses the opposite order, with the
        # lock's release as the barrier in between: if the generation has not changed yet, the vault will see this
        # state.
        if self._current[0] != generation:
            raise StaleGenerationError(f"fenced off: generation {generation} is over")
        return sequence

    def close(self) -> None:
        """Release the memory views, so that the memory can be unmapped."""
        for view in (*self._slots, *self._body, self._view):
            view.release()


def _checked_length(sequence: int, generation: int, state: bytes) -> int:
    head = _CHECKED.pack(sequence, generation, len(state))
    return len(state) | zlib.crc32(state, zlib.crc32(head)) << 32


def _stride(capacity: int) -> int:
    return -(-(_SLOT.size + capacity) // _ALIGNMENT) * _ALIGNMENT
