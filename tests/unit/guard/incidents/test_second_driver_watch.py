"""The watch over second drivers: what a client's own word about its second driver moves, and what it holds up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from mpsguard.guard.broker.lowered_shares import ClassCeilings, ProgramShares
from mpsguard.guard.broker.second_claims import SecondClaims
from mpsguard.guard.broker.second_places import Move
from mpsguard.guard.config import DomainConfig
from mpsguard.guard.evidence import Evidence, Source, UvmFault, Xid
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.incidents.failover import view_of
from mpsguard.guard.incidents.second_driver_watch import SecondDriverWatch
from mpsguard.guard.lanes.lane_set import LaneSet
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.guard.model import LaneState
from mpsguard.guard.remedies import takeover
from mpsguard.linux.identity import Credentials, ProcessKey
from mpsguard.preload.second_claim import ClaimPhase, RepetitionState, SecondClaim
from tests.unit.guard.broker.test_second_drivers import ALICE, Place

WAITS = SecondClaim(ClaimPhase.WAITING, "cold", "")
WENT_OVER = SecondClaim(ClaimPhase.WENT_OVER, "cold", "", times=1)
REPEATS = SecondClaim(ClaimPhase.GOING_OVER, "cold", "", RepetitionState.UNDER_WAY)
COMPLETED = SecondClaim(ClaimPhase.WENT_OVER, "cold", "", RepetitionState.COMPLETED, times=1)
FAULTED = SecondClaim(ClaimPhase.REFUSED, "cold", "repeated_fault", RepetitionState.FAULTED)


def with_watch(path: Path, body: Callable[[Place, SecondDriverWatch, LaneSet, ProcessKey], None]) -> None:
    """Run a test with a client that has a second driver on the other lane since its own has faulted."""

    async def whole() -> None:
        place = Place(path)
        try:
            lanes = LaneSet(cast("Any", [place.first, place.second]), path / "active")
            view = DomainView(DomainConfig(name="d"), place.table, lanes, place.culprits)
            shares, metrics = ProgramShares(path / "shares"), Metrics()
            watch = SecondDriverWatch(
                view, shares, ClassCeilings(), path / "second", events=place.events, metrics=metrics
            )
            process = place.client()
            place.fault(place.first)
            watch.drivers.faulted("d-0")
            await watch.drivers.admit(process, Credentials(process.pid, ALICE, ALICE))
            watch.drivers.connected(process, "d-1")
            body(place, watch, lanes, process)
            await watch.close()
        finally:
            place.close()

    asyncio.run(whole())


def test_clients_that_go_over_take_newcomers_with_them_while_their_lane_is_in_fault(tmp_path: Path) -> None:
    def body(_: Place, watch: SecondDriverWatch, lanes: LaneSet, process: ProcessKey) -> None:
        watch._claimed(process, WENT_OVER)
        assert lanes.active.spec.name == "d-1"

    with_watch(tmp_path, body)


def test_one_that_says_later_that_it_went_over_moves_no_lane_that_serves_again(tmp_path: Path) -> None:
    def body(place: Place, watch: SecondDriverWatch, lanes: LaneSet, process: ProcessKey) -> None:
        place.first.become(LaneState.ACTIVE)
        watch._claimed(process, WENT_OVER)
        assert place.now(process).lane == "d-1"
        assert lanes.active.spec.name == "d-0"

    with_watch(tmp_path, body)


def test_a_lane_is_not_held_for_a_culprit_which_no_lane_takes(tmp_path: Path) -> None:
    def body(place: Place, watch: SecondDriverWatch, _: LaneSet, process: ProcessKey) -> None:
        watch._claims = cast("SecondClaims", Says(WAITS))
        assert watch._one(process.pid, place.now(process), "d-0").may_go_over
        place.culprits.add(process)
        assert not watch._one(process.pid, place.now(process), "d-0").may_go_over

    with_watch(tmp_path, body)


class Says:
    """Claims of which each is the same."""

    def __init__(self, claim: SecondClaim) -> None:
        self._claim = claim

    def of(self, _: ProcessKey) -> SecondClaim:
        """See `SecondClaims`."""
        return self._claim

    def close(self) -> None:
        """See `SecondClaims`."""


def outcomes(place: Place) -> list[str | None]:
    told = ("client_repeats_alone", "client_repeated_alone")
    return [event.data.get("outcome") for event in place.events.recent() if event.kind in told]


def test_a_repetition_is_told_once_and_its_work_is_not_its_lanes_meanwhile(tmp_path: Path) -> None:
    def body(place: Place, watch: SecondDriverWatch, _: LaneSet, process: ProcessKey) -> None:
        for claim in (REPEATS, REPEATS, COMPLETED):
            watch._claimed(process, claim)
            assert watch._domain.is_alone(process)
        assert outcomes(place) == [None, "completed"]
        # It is over, whatever it says now.
        watch._claimed(process, FAULTED)
        assert outcomes(place) == [None, "completed"]
        assert place.now(process).lane == "d-1"

    with_watch(tmp_path, body)


def test_one_that_has_gone_over_may_repeat_again_after_another_fault(tmp_path: Path) -> None:
    def body(place: Place, watch: SecondDriverWatch, _: LaneSet, process: ProcessKey) -> None:
        for claim in (REPEATS, COMPLETED):
            watch._claimed(process, claim)
        place.first.become(LaneState.ACTIVE)
        again = msgspec.structs.replace(REPEATS, times=1)
        # Its lane has not faulted.
        watch._claimed(process, again)
        assert outcomes(place) == [None, "completed"]
        place.fault(place.second)
        watch.drivers.faulted("d-1")
        watch._claimed(process, again)
        watch._claimed(process, msgspec.structs.replace(FAULTED, times=1))
        assert outcomes(place) == [None, "completed", None, "faulted"]

    with_watch(tmp_path, body)


def test_a_repetition_without_a_fault_is_none(tmp_path: Path) -> None:
    def body(place: Place, watch: SecondDriverWatch, _: LaneSet, __: ProcessKey) -> None:
        place.first.become(LaneState.ACTIVE)
        other = place.client()
        watch._claimed(other, REPEATS)
        watch._claimed(other, FAULTED)
        assert outcomes(place) == []
        assert not watch._domain.any_alone

    with_watch(tmp_path, body)


def test_clients_that_say_one_after_another_that_they_repeat_are_not_believed_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(place: Place, watch: SecondDriverWatch, _: LaneSet, process: ProcessKey) -> None:
        following = [place.client() for _ in range(4)]
        watch.drivers.faulted("d-0")
        began = time.monotonic()
        for number, each in enumerate((process, *following)):
            with monkeypatch.context() as later:
                later.setattr(time, "monotonic", lambda at=began + 29.0 * number: at)
                watch._claimed(each, REPEATS)
                assert watch._domain.any_alone == (number < 4)
        # What it says is evidence all the same.
        assert len(outcomes(place)) == 5

    with_watch(tmp_path, body)


def test_which_lane_a_fault_hits_of_a_client_with_a_second_driver_is_left_to_the_lanes_own_signs(
    tmp_path: Path,
) -> None:
    def body(_: Place, watch: SecondDriverWatch, lanes: LaneSet, process: ProcessKey) -> None:
        fault = Evidence(
            source=Source.UVM, observed_at=1.0, what=UvmFault(0, "write", "invalid PDE", True), process=process
        )
        line = Evidence(source=Source.KERNEL_LOG, observed_at=1.0, what=Xid(31, process.pid, ""))

        def struck() -> list[str | None]:
            views = [view_of(watch._domain, lane) for lane in lanes.all]
            return [takeover.lost_lane(each, views, frozenset()) for each in (fault, line)]

        # Else it would have the standbys of a healthy lane dismissed, by a fault where the writers are.
        assert struck() == [None, None]
        watch._claimed(process, WENT_OVER)
        assert struck() == ["d-1", "d-1"]

    with_watch(tmp_path, body)


def test_a_fault_of_a_client_that_moved_strikes_no_lane_until_the_one_before_has_let_go_of_it(tmp_path: Path) -> None:
    def body(_: Place, watch: SecondDriverWatch, lanes: LaneSet, process: ProcessKey) -> None:
        watch.drivers.begin_move(process, Move("d-1"))
        assert watch.drivers.moved(process) is not None
        assert [view_of(watch._domain, lane).astride for lane in lanes.all] == [frozenset(), {process}]
        watch.drivers.left(process)
        assert [view_of(watch._domain, lane).astride for lane in lanes.all] == [frozenset(), frozenset()]

    with_watch(tmp_path, body)


def test_the_last_word_of_a_client_that_has_ended_counts_once(tmp_path: Path) -> None:
    def body(place: Place, watch: SecondDriverWatch, _: LaneSet, process: ProcessKey) -> None:
        watch._claimed(process, REPEATS)
        client = place.now(process)
        before = watch._repetitions.forget(process)
        watch._last_word(client, time.monotonic(), before, 0, FAULTED)
        assert outcomes(place) == [None, "faulted"]
        assert watch._repetitions.forget(process) is RepetitionState.NONE

    with_watch(tmp_path, body)
