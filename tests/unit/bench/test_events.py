"""The JSON lines of the client programs."""

import pytest

from tests.bench.core.events import Event, Outcome, parse_event

LINE = '{"event":"died","pid":7,"monotonic":12.5,"realtime":1700000000.25,"code":719,"name":"X","iterations":3}'


def outcome(*events: Event, status: int = 0) -> Outcome:
    return Outcome("one", 7, status, events, ())


def at(name: str, monotonic: float, **members: object) -> Event:
    return Event(name, 7, monotonic, 0.0, members)


def test_a_line_becomes_an_event() -> None:
    event = parse_event(LINE)
    assert event == Event("died", 7, 12.5, 1700000000.25, {"code": 719, "name": "X", "iterations": 3})
    assert event.number("code") == 719
    assert event.number("name") == 0


@pytest.mark.parametrize(
    "line", ["", "warning: something", "[1, 2]", "null", '{"event":"x"}', '{"event":"x","pid":"a"}']
)
def test_other_output_is_no_event(line: str) -> None:
    assert parse_event(line) is None


def test_a_finished_client_is_ok_and_tells_its_times() -> None:
    done = outcome(at("init_begin", 1.0), at("first_kernel", 1.25), at("finished", 2.0, iterations=10))
    assert done.ok
    assert (done.code, done.iterations) == (0, 10)
    assert done.between("init_begin", "first_kernel") == 0.25


def test_an_exit_status_of_zero_without_the_last_event_is_not_ok() -> None:
    assert not outcome(at("begin", 1.0)).ok


def test_a_client_that_could_not_start_has_its_code() -> None:
    failed = outcome(at("init_begin", 1.0), at("failed", 1.1, code=807, call="cuInit"), status=4)
    assert not failed.ok
    assert failed.code == 807
    with pytest.raises(ValueError, match="807"):
        failed.between("init_begin", "first_kernel")
