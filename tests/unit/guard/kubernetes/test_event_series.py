"""Which Events are written for notices, and which are repeated."""

from msgspec.structs import replace

from mpsguard.guard.kubernetes.event_series import (
    LASTS,
    MOST,
    NewEvent,
    RepeatedEvent,
    Series,
    next_step,
    remembered,
    steps,
)
from mpsguard.guard.kubernetes.notices import NamedPods, Notice, notices
from tests.unit.guard.kubernetes.records import NODE, cast, record

FIRST, *_, OF_NODE = notices(record(), cast(record()), NODE, NamedPods.ALL)


def later(notice: Notice, seconds: float, incident: str = "next") -> Notice:
    return replace(notice, at=notice.at + seconds, incident=incident)


def test_the_first_is_created_beside_its_object_and_the_nodes_in_default() -> None:
    for notice, namespace in ((FIRST, "team-a"), (OF_NODE, "default")):
        step = next_step({}, notice)
        assert isinstance(step, NewEvent)
        assert (step.series.namespace, step.series.count, step.series.last) == (namespace, 1, notice.at)
        assert step.series.name.startswith(f"{notice.subject.name}.")


def test_the_next_ones_raise_the_count() -> None:
    known = {FIRST.key: next_step({}, FIRST).series}
    step = next_step(known, later(FIRST, 10))
    assert isinstance(step, RepeatedEvent)
    assert (step.series.name, step.series.count, step.series.last) == (known[FIRST.key].name, 2, FIRST.at + 10)


def test_after_a_long_time_there_is_a_new_one() -> None:
    known = {FIRST.key: next_step({}, FIRST).series}
    step = next_step(known, later(FIRST, LASTS + 1))
    assert isinstance(step, NewEvent)
    assert step.series.name != known[FIRST.key].name


def test_a_step_is_the_same_when_it_is_computed_again() -> None:
    assert next_step({}, FIRST) == next_step({}, FIRST)


def test_many_in_one_round_are_one_event_and_one_repetition() -> None:
    found = steps({}, [FIRST, *(later(FIRST, each, str(each)) for each in range(1, 50)), OF_NODE])
    assert [(type(step), step.series.count) for step in found] == [(NewEvent, 1), (RepeatedEvent, 50), (NewEvent, 1)]


def test_a_name_of_any_object_makes_a_name_of_an_event() -> None:
    subject = replace(FIRST.subject, name=f"{'a' * 199}.-{'b' * 50}")
    name = next_step({}, replace(FIRST, subject=subject)).series.name
    assert len(name) <= 253
    assert name.startswith(f"{'a' * 199}.")
    assert ".." not in name
    assert ".-" not in name


def test_what_is_remembered_is_bounded_in_time_and_number() -> None:
    series = [(str(number), Series("default", "name", 1, float(number))) for number in range(2 * MOST)]
    kept = remembered(series, now=float(2 * MOST))
    assert min(each.last for each in kept.values()) >= 2 * MOST - min(LASTS, MOST)
    assert len(kept) <= MOST
    assert remembered(series, now=2 * MOST + LASTS + 1) == {}
