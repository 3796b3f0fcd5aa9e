"""Second drivers of clients that move without a fault: where they may connect, and what is believed of their word."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from mpsguard.guard.broker.handshake import RefusedError
from mpsguard.guard.broker.second_places import Move
from mpsguard.guard.config import ServiceClass
from mpsguard.guard.lanes.levers import Levers
from mpsguard.linux.identity import Credentials
from mpsguard.preload.second_claim import ClaimPhase
from tests.unit.guard.broker.test_second_drivers import ALICE, Place, run


def test_a_client_that_is_asked_to_move_connects_without_a_fault_and_has_the_share_that_was_asked_for(
    tmp_path: Path,
) -> None:
    async def body(place: Place) -> None:
        process = place.client()
        place.verdicts.settings = msgspec.structs.replace(
            place.verdicts.settings, classes=(ServiceClass("batch", sm_share=60.0),)
        )
        place.drivers.begin_move(process, Move("d-0", 12.0))
        assert await place.connect(process) == Levers(12.0)
        changed = place.drivers.moved(process)
        assert changed is not None
        assert (changed.lane, changed.second_lane, changed.lane_before, changed.sm_share) == ("d-0", None, None, 12.0)
        assert changed.moved_at is not None

    run(tmp_path, body)


def test_a_driver_is_not_brought_to_a_lane_that_ends_the_work_of_its_client(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        process = place.client(uid=0)
        place.drivers.begin_move(process, Move("d-1"))
        await place.connect(process, uid=0)
        place.drivers.moved(process)
        place.says(process, ClaimPhase.MOVED, 1, makes_ready=True)
        assert place.drivers.readiness(process.pid) == "wait"
        came = asyncio.ensure_future(place.connect(process, uid=0))
        await asyncio.sleep(0)
        assert place.now(process).second_lane is None
        place.drivers.let_go(process)
        assert place.drivers.readiness(process.pid) == "ready"
        await came
        assert place.now(process).second_lane == "d-0"

    run(tmp_path, body)


def test_that_a_client_has_moved_is_believed_if_it_was_asked_to_and_has_a_second_driver_there(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        process = place.client()
        assert place.drivers.moved(process) is None
        place.drivers.begin_move(process, Move("d-1"))
        assert place.drivers.moved(process) is None
        await place.connect(process)
        changed = place.drivers.moved(process)
        assert changed is not None
        assert (changed.lane, changed.lane_before) == ("d-1", "d-0")
        place.drivers.left(process)
        assert place.now(process).lane_before is None
        # It was asked once.
        assert place.drivers.moved(process) is None

    run(tmp_path, body)


def test_a_client_moves_there_and_back(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        process = place.client()
        for lane, before in (("d-1", "d-0"), ("d-0", "d-1"), ("d-1", "d-0")):
            place.drivers.begin_move(process, Move(lane))
            await place.connect(process)
            changed = place.drivers.moved(process)
            assert changed is not None
            assert (changed.lane, changed.lane_before, changed.second_lane) == (lane, before, None)
            place.drivers.let_go(process)
        assert place.drivers.times(process) == 3

    run(tmp_path, body)


def test_a_client_that_stays_is_as_before(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        process = place.client()
        before = place.now(process)
        place.drivers.begin_move(process, Move("d-1"))
        await place.connect(process)
        place.drivers.not_moved(process, has_second=False)
        assert place.now(process) == before
        with pytest.raises(RefusedError):
            await place.drivers.admit(process, Credentials(process.pid, ALICE, ALICE))

    run(tmp_path, body)


def test_the_next_guard_knows_what_was_asked_and_what_has_moved(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        asked, gone = place.client(), place.client()
        for process in (asked, gone):
            place.drivers.begin_move(process, Move("d-1", 30.0))
            await place.connect(process)
        place.drivers.moved(gone)
        await place.drivers.saved()
        after = place.made()
        found = {
            key: after.recalled(msgspec.structs.replace(place.now(key), lane="d-0", second_lane=None, moved_at=None))
            for key in (asked, gone)
        }
        assert (found[asked].lane, found[asked].second_lane) == ("d-0", "d-1")
        assert (found[gone].lane, found[gone].sm_share) == ("d-1", 30.0)
        assert found[gone].moved_at is not None
        assert (after.move_of(asked), after.move_of(gone)) == (Move("d-1", 30.0), None)

    run(tmp_path, body)
