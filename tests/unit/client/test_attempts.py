"""The book of attempts: the innocent lose a step each, the guilty are alone when they do it again."""

from collections.abc import Iterable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.client.poison_requests import MOST_DEATHS, Attempt, PoisonRequestTracker, Suspicion

REQUESTS = st.dictionaries(st.integers(0, 9), st.integers(0, 5), max_size=6)


def turn(book: PoisonRequestTracker, waiting: Iterable[int]) -> Attempt:
    return book.next_step(waiting)


def test_without_a_death_all_are_run() -> None:
    assert turn(PoisonRequestTracker(), [3, 1, 2, 1]) == Attempt((3, 1, 2), ())


def test_each_request_of_the_step_is_alone_until_it_gets_further() -> None:
    book = PoisonRequestTracker().died({1: 10, 2: 20})
    assert turn(book, [3, 1, 2]) == Attempt((1,), ())
    assert book.progressed(1, 10) == book
    book = book.progressed(1, 11)
    assert turn(book, [3, 1, 2]) == Attempt((2,), ())
    assert turn(book.progressed(2, 21), [3, 1, 2]) == Attempt((3, 1, 2), ())


def test_after_three_deaths_at_one_point_a_request_is_skipped_and_the_others_are_run() -> None:
    book = PoisonRequestTracker()
    for _ in range(MOST_DEATHS):
        assert turn(book, [1, 2]).skip == ()
        book = book.died({1: 10})
    assert turn(book, [1, 2]) == Attempt((2,), (1,))
    assert turn(book.finished(1), [2]) == Attempt((2,), ())


def test_deaths_further_on_do_not_add_up() -> None:
    book = PoisonRequestTracker()
    for progress in range(100):
        book = book.died({1: progress})
        assert turn(book, [1]) == Attempt((1,), ())


def test_a_death_of_an_idle_process_counts_against_no_request() -> None:
    book = PoisonRequestTracker().died({1: 3})
    assert book.died({}) == book


@given(st.lists(REQUESTS, max_size=6), st.integers(1, 4), st.lists(st.integers(0, 9), max_size=8))
def test_a_turn_is_of_waiting_requests_and_never_of_two_suspects(
    deaths: list[dict[int, int]], most: int, waiting: list[int]
) -> None:
    book = PoisonRequestTracker(most_deaths=most)
    for in_step in deaths:
        book = book.died(in_step)
    now = turn(book, waiting)
    assert set(now.run) | set(now.skip) <= set(waiting)
    assert not set(now.run) & set(now.skip)
    assert set(now.skip) == {each for each in waiting if book.deaths(each) >= most}
    assert all(book.deaths(each) == 0 for each in now.run) or len(now.run) == 1
    if set(waiting) - set(now.skip):
        assert now.run, "somebody can always be run"


@given(st.lists(REQUESTS, max_size=6), st.integers(1, 4))
def test_it_is_the_same_when_it_has_been_written_down(deaths: list[dict[int, int]], most: int) -> None:
    book = PoisonRequestTracker(most_deaths=most)
    for in_step in deaths:
        book = book.died(in_step)
    for module in (msgspec.msgpack, msgspec.json):
        assert module.decode(module.encode(book), type=PoisonRequestTracker) == book


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
    deaths, book = 0, PoisonRequestTracker()
    while len(answered) + len(skipped) < len(lengths):
        now = turn(book, [each for each in lengths if each not in answered | skipped])
        for each in now.skip:
            skipped.add(each)
            book = book.finished(each)
        if any(guilty.get(each) == progress[each] for each in now.run):
            deaths += 1
            assert deaths <= MOST_DEATHS * len(guilty)
            book = book.died({each: progress[each] for each in now.run})
            continue
        for each in now.run:
            progress[each] += 1
            book = book.progressed(each, progress[each])
            if progress[each] == lengths[each]:
                answered.add(each)
                book = book.finished(each)
    assert skipped == guilty.keys()
    assert book.suspicions == {}


def test_a_suspicion_is_small() -> None:
    book = PoisonRequestTracker({1: Suspicion(2, 100)})
    assert len(msgspec.msgpack.encode(book)) < 64
