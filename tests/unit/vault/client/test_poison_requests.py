"""Poison requests: an innocent one loses a step, a guilty one is alone when it kills again."""

from collections.abc import Iterable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.vault.client.poison_requests import MOST_DEATHS, Attempt, PoisonRequestTracker, Suspicion

REQUESTS = st.dictionaries(st.integers(0, 9), st.integers(0, 5), max_size=6)


def turn(tracker: PoisonRequestTracker, waiting: Iterable[int]) -> Attempt:
    return tracker.next_step(waiting)


def test_without_a_death_all_are_run() -> None:
    assert turn(PoisonRequestTracker(), [3, 1, 2, 1]) == Attempt((3, 1, 2), ())


def test_each_request_of_the_step_is_alone_until_it_gets_further() -> None:
    tracker = PoisonRequestTracker().died({1: 10, 2: 20})
    assert turn(tracker, [3, 1, 2]) == Attempt((1,), ())
    assert tracker.progressed(1, 10) == tracker
    tracker = tracker.progressed(1, 11)
    assert turn(tracker, [3, 1, 2]) == Attempt((2,), ())
    assert turn(tracker.progressed(2, 21), [3, 1, 2]) == Attempt((3, 1, 2), ())


def test_after_three_deaths_at_one_point_a_request_is_skipped_and_the_others_are_run() -> None:
    tracker = PoisonRequestTracker()
    for _ in range(MOST_DEATHS):
        assert turn(tracker, [1, 2]).skip == ()
        tracker = tracker.died({1: 10})
    assert turn(tracker, [1, 2]) == Attempt((2,), (1,))
    assert turn(tracker.finished(1), [2]) == Attempt((2,), ())


def test_deaths_further_on_do_not_add_up() -> None:
    tracker = PoisonRequestTracker()
    for progress in range(100):
        tracker = tracker.died({1: progress})
        assert turn(tracker, [1]) == Attempt((1,), ())


def test_a_death_of_an_idle_process_counts_against_no_request() -> None:
    tracker = PoisonRequestTracker().died({1: 3})
    assert tracker.died({}) == tracker


@given(st.lists(REQUESTS, max_size=6), st.integers(1, 4), st.lists(st.integers(0, 9), max_size=8))
def test_a_turn_is_of_waiting_requests_and_never_of_two_suspects(
    deaths: list[dict[int, int]], most: int, waiting: list[int]
) -> None:
    tracker = PoisonRequestTracker(most_deaths=most)
    for in_step in deaths:
        tracker = tracker.died(in_step)
    now = turn(tracker, waiting)
    assert set(now.run) | set(now.skip) <= set(waiting)
    assert not set(now.run) & set(now.skip)
    assert set(now.skip) == {each for each in waiting if tracker.deaths(each) >= most}
    assert all(tracker.deaths(each) == 0 for each in now.run) or len(now.run) == 1
    if set(waiting) - set(now.skip):
        assert now.run, "somebody can always be run"


@given(st.lists(REQUESTS, max_size=6), st.integers(1, 4))
def test_it_is_the_same_when_it_has_been_written_down(deaths: list[dict[int, int]], most: int) -> None:
    tracker = PoisonRequestTracker(most_deaths=most)
    for in_step in deaths:
        tracker = tracker.died(in_step)
    for module in (msgspec.msgpack, msgspec.json):
        assert module.decode(module.encode(tracker), type=PoisonRequestTracker) == tracker


@given(
    st.dictionaries(st.integers(0, 9), st.integers(1, 8), min_size=1, max_size=8),
    st.dictionaries(st.integers(0, 9), st.integers(0, 7), max_size=3),
)
def test_all_innocent_requests_are_answered_and_all_guilty_ones_skipped(
    lengths: dict[int, int], guilty_at: dict[int, int]
) -> None:
    """Processes that die whenever a guilty request comes to its point: it costs three of them for each, no more."""
    guilty = {each: at for each, at in guilty_at.items() if at < lengths.get(each, 0)}
    progress = dict.fromkeys(lengths, 0)
    answered: set[int] = set()
    skipped: set[int] = set()
    deaths, tracker = 0, PoisonRequestTracker()
    while len(answered) + len(skipped) < len(lengths):
        now = turn(tracker, [each for each in lengths if each not in answered | skipped])
        for each in now.skip:
            skipped.add(each)
            tracker = tracker.finished(each)
        if any(guilty.get(each) == progress[each] for each in now.run):
            deaths += 1
            assert deaths <= MOST_DEATHS * len(guilty)
            tracker = tracker.died({each: progress[each] for each in now.run})
            continue
        for each in now.run:
            progress[each] += 1
            tracker = tracker.progressed(each, progress[each])
            if progress[each] == lengths[each]:
                answered.add(each)
                tracker = tracker.finished(each)
    assert skipped == guilty.keys()
    assert tracker.suspicions == {}


def test_a_suspicion_is_small() -> None:
    tracker = PoisonRequestTracker({1: Suspicion(2, 100)})
    assert len(msgspec.msgpack.encode(tracker)) < 64
