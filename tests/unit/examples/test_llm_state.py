"""The token server's forward state, and what follows from it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.llm_server import state as forward
from examples.llm_server.state import MOST_DEATHS, Request, State, StateError

TOKENS = st.lists(st.integers(0, (1 << 32) - 1), max_size=40).map(tuple)
REQUESTS = st.builds(
    Request,
    st.integers(0, 1 << 62),
    st.integers(0, 63),
    TOKENS,
    st.integers(1, 1000),
    st.integers(0, (1 << 62) - 1),
    TOKENS,
    st.integers(0, 5),
)
STATES = st.builds(State, st.lists(REQUESTS, max_size=6).map(tuple), st.integers(0, 1 << 62))


@given(STATES)
def test_a_state_is_read_as_it_was_written(state: State) -> None:
    assert forward.decode(forward.encode(state)) == state


@given(st.integers(1, 16), st.integers(8, 300))
def test_no_state_is_larger_than_was_said(slots: int, length: int) -> None:
    largest = (1 << 62) - 1
    full = tuple(
        Request(
            largest - slot, slot, (1 << 32 - 1,) * (length // 2), largest, largest, (7,) * (length - length // 2), 3
        )
        for slot in range(slots)
    )
    assert len(forward.encode(State(full, largest))) <= forward.capacity(slots, length)


@given(st.binary(max_size=200))
def test_anything_else_is_no_state(data: bytes) -> None:
    with pytest.raises(StateError):
        forward.decode(data)


def test_half_a_token_and_another_version_are_refused() -> None:
    whole = forward.encode(State((Request(1, 0, (5,), 1, 0),), 2))
    with pytest.raises(StateError):
        forward.decode(whole.replace(b"\xc4\x04", b"\xc4\x03").replace(b"\x05\0\0\0", b"\x05\0\0"))
    with pytest.raises(StateError, match="version 2"):
        forward.decode(b"\x93\x02" + whole[2:])


def request(number: int, slot: int, tokens: int = 0, limit: int = 10, deaths: int = 0) -> Request:
    return Request(number, slot, (1, 2), limit, 0, (9,) * tokens, deaths)


def test_slots_are_given_out_once() -> None:
    state = forward.admitted(forward.admitted(State(), request(4, 0)), request(7, 2))
    assert state.next_id == 8
    assert forward.free_slot(state, 4) == 1
    assert forward.free_slot(forward.admitted(state, request(8, 1)), 3) is None
    for taken in (request(9, 2), request(7, 1)):
        with pytest.raises(ValueError, match="another"):
            forward.admitted(state, taken)


def test_a_token_ends_all_suspicion() -> None:
    state = State((request(0, 0, deaths=2), request(1, 1, deaths=1)), 2)
    after = forward.advanced(state, {0: 55})
    assert after.requests == (msgspec.structs.replace(request(0, 0), tokens=(55,)), request(1, 1, deaths=1))
    assert forward.without(after, [1]).requests == after.requests[:1]


def test_requests_of_which_processes_may_die_are_tried_alone() -> None:
    state = State((request(3, 0), request(1, 1), request(2, 2, tokens=10)), 4)
    assert [r.id for r in forward.to_compute(state)] == [3, 1]
    state = forward.after_failover(state)
    assert [r.deaths for r in state.requests] == [1, 1, 0], "one that is over is not what it died of"
    assert [r.id for r in forward.to_compute(state)] == [3, 1]
    state = forward.after_failover(state)
    assert [r.id for r in forward.to_compute(state)] == [1]
    state = forward.advanced(state, {1: 5})
    assert [r.id for r in forward.to_compute(state)] == [3]


def test_the_poisoned_request_is_given_up_and_no_other() -> None:
    """A process that computes request 5 dies before it has a token; every other step gives one."""
    state = State(tuple(request(number, number, limit=20) for number in range(8)), 8)
    deaths = 0
    while chosen := forward.to_compute(state):
        if any(r.id == 5 for r in chosen):
            state = forward.after_failover(state)
            deaths += 1
        else:
            state = forward.advanced(state, {r.id: 1 for r in chosen})
    assert [r.id for r in state.requests if r.failed] == [5]
    assert all(len(r.tokens) == 20 for r in state.requests if r.id != 5)
    assert deaths == MOST_DEATHS
