"""The buffer of the forward state: whole at any moment, whatever was torn, spoilt, or is being written."""

import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsguard.vault.wire import state_buffer
from mpsguard.vault.wire.errors import StaleGenerationError, TooLargeError
from mpsguard.vault.wire.state_buffer import SLOTS, Publisher, State

CAPACITY = 96


def reader(memory: bytearray) -> state_buffer.Read:
    return lambda at, length: bytes(memory[at : at + length])


def new(generation: int = 1, first: State | None = None, capacity: int = CAPACITY) -> bytearray:
    memory = bytearray(state_buffer.size(capacity))
    for at, piece in state_buffer.blank(capacity, generation, first):
        memory[at : at + len(piece)] = piece
    return memory


def word(value: int) -> memoryview:
    return memoryview(bytearray(value.to_bytes(8, sys.byteorder))).cast("Q")


def publisher(memory: bytearray, generation: int = 1, current: memoryview | None = None) -> Publisher:
    return Publisher(memoryview(memory), CAPACITY, generation, word(generation) if current is None else current)


def newest(memory: bytearray) -> State | None:
    return state_buffer.latest(reader(memory), CAPACITY)


def test_an_empty_record_has_no_state() -> None:
    assert newest(new()) is None


@settings(deadline=None)
@given(st.lists(st.binary(max_size=CAPACITY), max_size=3 * SLOTS))
def test_the_newest_is_what_was_published_last(states: list[bytes]) -> None:
    memory = new()
    writer = publisher(memory)
    for number, state in enumerate(states, 1):
        assert writer.publish(state) == number
        assert newest(memory) == (number, 1, state)


def test_a_publisher_goes_on_from_what_was_carried_over() -> None:
    memory = new(7, State(41, 6, b"carried"))
    assert newest(memory) == (41, 6, b"carried")
    assert publisher(memory, 7).publish(b"new") == 42
    assert newest(memory) == (42, 7, b"new")


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    memory = new()
    writer = publisher(memory)
    writer.publish(b"x" * CAPACITY)
    with pytest.raises(TooLargeError, match=f"capacity={CAPACITY}"):
        writer.publish(b"x" * (CAPACITY + 1))
    assert newest(memory) == (1, 1, b"x" * CAPACITY)


def test_a_writer_that_was_fenced_off_hears_of_it() -> None:
    memory, current = new(), word(1)
    writer = publisher(memory, 1, current)
    writer.publish(b"counts")
    current[0] = 2
    with pytest.raises(StaleGenerationError):
        writer.publish(b"does not")
    assert newest(memory) == (1, 1, b"counts")


class MarksAtItsEnd:
    """In the place of the publisher's lock: the writer is fenced off when the state is stored, and not yet returned."""

    def __init__(self, current: memoryview) -> None:
        self._current = current

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, *_: object) -> None:
        self._current[0] += 1


def test_a_writer_fenced_off_while_it_publishes_is_not_told_that_the_state_counts() -> None:
    current = word(1)
    writer = publisher(new(), 1, current)
    writer._lock = MarksAtItsEnd(current)  # type: ignore[assignment]  # all that a lock is used for here
    with pytest.raises(StaleGenerationError):
        writer.publish(b"may count or not")


def stores(memory: bytearray, state: bytes, sequence: int) -> Iterator[tuple[int, bytes]]:
    """The stores of one publication, in the order of `Publisher.publish`, byte by byte but for the 8-byte words."""
    slot = state_buffer.slot_bytes(State(sequence, 1, state))
    at = state_buffer.slot_at(sequence, CAPACITY)
    yield at, bytes(8)
    for offset in range(32, len(slot)):
        yield at + offset, slot[offset : offset + 1]
    yield at + 8, slot[8:16]
    yield at + 16, slot[16:24]
    yield at, slot[:8]


def test_the_stores_here_are_those_of_the_publisher() -> None:
    memory, other = new(), new()
    publisher(memory).publish(b"state")
    for at, piece in stores(other, b"state", 1):
        other[at : at + len(piece)] = piece
    assert memory == other


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=CAPACITY), min_size=1, max_size=SLOTS + 3), st.binary(max_size=CAPACITY))
def test_a_writer_that_dies_after_any_store_leaves_the_state_before(states: list[bytes], last: bytes) -> None:
    memory = new()
    writer = publisher(memory)
    for state in states:
        writer.publish(state)
    before = (len(states), 1, states[-1])
    pieces = list(stores(memory, last, len(states) + 1))
    for at, piece in pieces[:-1]:
        memory[at : at + len(piece)] = piece
        assert newest(memory) == before
        # The next writer goes on from there.
        assert publisher(bytearray(memory)).publish(b"next") == len(states) + 1
    at, piece = pieces[-1]
    memory[at : at + len(piece)] = piece
    assert newest(memory) == (len(states) + 1, 1, last)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.binary(max_size=CAPACITY), min_size=1, max_size=SLOTS + 3),
    st.binary(min_size=1, max_size=CAPACITY),
    st.data(),
)
def test_stores_that_are_seen_in_any_order_show_a_published_state(
    states: list[bytes], last: bytes, data: st.DataObject
) -> None:
    """As another processor may see them where stores are not seen in order: any of them may be missing."""
    memory = new()
    writer = publisher(memory)
    for state in states:
        writer.publish(state)
    pieces = list(stores(memory, last, len(states) + 1))
    seen = data.draw(st.sets(st.integers(0, len(pieces) - 1)))
    for index in sorted(seen):
        at, piece = pieces[index]
        memory[at : at + len(piece)] = piece
    found = newest(memory)
    assert found is not None
    published = {number: bytes(each) for number, each in enumerate([*states, last], 1)}
    assert published[found.sequence] == found.state
    assert found.sequence >= len(states)


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=2 * state_buffer.size(CAPACITY)), st.integers(0, state_buffer.size(CAPACITY)))
def test_no_bytes_whatever_make_the_reader_fail(garbage: bytes, at: int) -> None:
    memory = new()
    publisher(memory).publish(b"state")
    end = min(at + len(garbage), len(memory))
    memory[at:end] = garbage[: end - at]
    state = newest(memory)
    assert state is None or len(state.state) <= CAPACITY


def test_a_reader_beside_a_busy_writer_sees_only_whole_states_and_never_an_older_one() -> None:
    memory = new()
    writer = publisher(memory)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            writer.publish(number.to_bytes(8, "little") * (1 + number % 12))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        last = 0
        for _ in range(3000):
            state = newest(memory)
            if state is None:
                continue
            assert state.state == state.sequence.to_bytes(8, "little") * (1 + state.sequence % 12)
            assert state.sequence >= last
            last = state.sequence
    finally:
        stop.set()
        thread.join()


def spoilt(length: int = CAPACITY) -> bytearray:
    """Slots that all claim a state of that length, under a wrong checksum."""
    memory = new()
    for sequence in range(1, SLOTS + 1):
        slot = state_buffer.slot_bytes(State(sequence, 1, bytes(length)))
        at = state_buffer.slot_at(sequence, CAPACITY)
        memory[at : at + len(slot)] = slot
        memory[at + 20] ^= 1
    return memory


class Counting:
    """Reads memory, and counts the bytes."""

    def __init__(self, memory: bytearray) -> None:
        self._memory = memory
        self.count = 0

    def __call__(self, at: int, length: int) -> bytes:
        self.count += length
        return bytes(self._memory[at : at + length])


HEADERS = SLOTS * (8 + 32 + 8)
"""Bytes of one pass without the states."""


def test_a_slot_that_reads_the_same_twice_is_corrupt() -> None:
    read = Counting(spoilt())
    assert state_buffer.latest(read, CAPACITY) is None
    assert read.count <= 2 * (SLOTS * CAPACITY + HEADERS)


def test_no_more_is_read_than_was_allowed() -> None:
    read = Counting(spoilt())
    assert state_buffer.latest(read, CAPACITY, most=2 * CAPACITY) is None
    assert read.count <= 2 * CAPACITY + HEADERS


def test_behind_a_spoilt_slot_the_one_before_counts() -> None:
    memory = new()
    writer = publisher(memory)
    for state in (b"before", b"last"):
        writer.publish(state)
    memory[state_buffer.slot_at(2, CAPACITY) + 32] ^= 1
    assert state_buffer.latest(reader(memory), CAPACITY, most=2 * CAPACITY) == (1, 1, b"before")
