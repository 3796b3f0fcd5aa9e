"""What clients get of a lane, and what follows for its state: no word of the control daemon for itself counts here."""

import msgspec
import pytest

from mpsguard.guard.lanes import lane_state, service
from mpsguard.guard.lanes.service import Failures, ServiceRecord, verdict
from mpsguard.guard.model import LaneState

NOW = 1000.0
STRANGER, OTHER = 65534, 65533
HEAVY = service.ENOUGH


def failures(*users: int | None, count: int | None = None, last: float = NOW) -> Failures:
    weights = {user: HEAVY for user in users if user is not None}
    return Failures(weights, HEAVY * len(users), len(users) if count is None else count, last, "")


def proven(record: ServiceRecord, now: float = NOW) -> bool | None:
    found = verdict(record, now)
    return None if found is None else found.proven


def test_a_lane_that_no_client_has_come_to_is_not_accused() -> None:
    assert verdict(ServiceRecord(), NOW) is None
    assert verdict(ServiceRecord(handed_over=1.0, served=6.0), 1e9) is None


@pytest.mark.parametrize("kind", ["turned_away", "lost", "refused"])
@pytest.mark.parametrize(
    ("users", "expected"),
    [((None,), True), ((STRANGER,), False), ((STRANGER, OTHER), True), ((None, STRANGER), True)],
)
def test_one_strangers_failures_are_a_doubt_and_others_a_proof(
    kind: str, users: tuple[int | None, ...], expected: bool
) -> None:
    record = msgspec.structs.replace(ServiceRecord(), **{kind: failures(*users)})
    assert proven(record) is expected


def test_a_lighter_second_user_does_not_turn_a_doubt_into_a_proof() -> None:
    record = ServiceRecord(lost=Failures({STRANGER: 100, OTHER: service.LOST}, 101, 101, NOW))
    assert proven(record) is False


def test_a_strangers_failures_are_its_own_affair_while_others_are_served() -> None:
    record = ServiceRecord(turned_away=failures(STRANGER), served=NOW - service.STANDS / 2)
    assert verdict(record, NOW) is None
    assert proven(msgspec.structs.replace(record, turned_away=failures(None))) is True
    assert proven(msgspec.structs.replace(record, served=NOW - 2 * service.STANDS)) is False


def test_one_users_word_is_enough_where_its_servers_ended_by_themselves_and_no_other_is_served() -> None:
    once = Failures().with_one([STRANGER], service.TURNED_AWAY, NOW, "", by_itself=True)
    assert proven(ServiceRecord(turned_away=once)) is True
    assert proven(ServiceRecord(turned_away=once, served=NOW - service.STANDS_AT_MOST)) is True
    assert proven(ServiceRecord(turned_away=once, served=NOW - 2 * service.STANDS)) is False
    assert verdict(ServiceRecord(turned_away=once, served=NOW), NOW) is None
    # One that it may have killed makes a doubt of all.
    for more in (False, True):
        once = once.with_one([STRANGER], service.TURNED_AWAY, NOW, "", by_itself=more)
    assert proven(ServiceRecord(turned_away=once)) is False


def test_what_lies_long_ago_says_nothing_and_the_more_failed_the_longer_it_counts() -> None:
    for count, lasts in ((1, service.STANDS), (3, 3 * service.STANDS), (1000, service.STANDS_AT_MOST)):
        record = ServiceRecord(turned_away=failures(None, count=count))
        assert verdict(record, NOW + lasts - 1) is not None
        assert verdict(record, NOW + lasts + 1) is None


def test_a_single_server_that_ended_young_is_no_verdict() -> None:
    once = Failures().with_one([], service.LOST, NOW, "")
    assert verdict(ServiceRecord(lost=once), NOW) is None
    assert proven(ServiceRecord(lost=once.with_one([], service.LOST, NOW, ""))) is True


def test_failures_take_bounded_room() -> None:
    many = Failures()
    for user in range(10_000):
        many = many.with_one([user], service.TURNED_AWAY, NOW, "words")
    assert len(many.weights) == service.USERS
    assert many.count < 10_000


def test_failures_that_several_may_have_caused_prove_nothing_until_none_of_them_can_have_caused_enough() -> None:
    found = Failures()
    for _ in range(100):
        found = found.with_one([STRANGER, OTHER], service.LOST, NOW, "")
    assert proven(ServiceRecord(lost=found)) is False
    found = found.with_one([OTHER], service.TURNED_AWAY, NOW, "")
    assert proven(ServiceRecord(lost=found)) is False
    assert proven(ServiceRecord(lost=found.with_one([STRANGER], service.TURNED_AWAY, NOW, ""))) is True


@pytest.mark.parametrize("fact", ["waiting_since", "unanswered_since"])
def test_a_client_that_waits_or_a_question_without_answer_tells_unless_another_was_handed_over_since(fact: str) -> None:
    record = msgspec.structs.replace(ServiceRecord(), **{fact: NOW})
    assert verdict(record, NOW + service.WAITED - 0.1) is None
    assert proven(record, NOW + service.WAITED) is True
    since = msgspec.structs.replace(record, handed_over=NOW + service.WAITED - 1)
    assert verdict(since, NOW + service.WAITED) is None


def test_a_stopped_server_serves_nobody() -> None:
    record = ServiceRecord(stopped_since=NOW, handed_over=NOW)
    assert verdict(record, NOW) is None
    assert proven(record, NOW + service.STOPPED) is True


def test_a_server_that_its_own_user_may_have_stopped_is_a_doubt() -> None:
    record = ServiceRecord(stopped_since=NOW, stopped_by=frozenset({STRANGER}))
    assert proven(record, NOW + service.STOPPED) is False


def test_a_wait_that_one_user_may_cause_is_a_proof_only_where_nobody_is_served() -> None:
    record = ServiceRecord(waiting_since=NOW, waiting_by=frozenset({STRANGER}))
    now = NOW + service.WAITED
    assert proven(record, now) is True
    assert proven(msgspec.structs.replace(record, served=now - service.STANDS_AT_MOST + 1), now) is False
    assert proven(msgspec.structs.replace(record, served=now, waiting_by=frozenset()), now) is True


@pytest.mark.parametrize("said", list(LaneState))
def test_the_verdict_decides_but_for_a_fault_and_a_doubt_never_changes_the_state(said: LaneState) -> None:
    sure, doubt = service.NotServed("because", True), service.NotServed("perhaps", False)
    state = lane_state.judged(said, "said", sure, ())["state"]
    assert state is (said if said is LaneState.FAULT else LaneState.FAILING)
    assert lane_state.judged(said, "said", doubt, ())["state"] is said
    assert lane_state.judged(said, "said", None, ()) == {"state": said, "reason": "said", "doubt": ""}
