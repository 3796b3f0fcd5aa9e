"""Second drivers of clients that have gone over: where the next one connects, and how it is known as one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mpsguard.guard.model import LaneState
from mpsguard.preload.second_claim import ClaimPhase
from tests.unit.guard.broker.test_second_drivers import SHARE, Place, run


def test_a_client_goes_over_again_and_back(tmp_path: Path) -> None:
    """Its next driver is told from a further context of the one at hand, which belongs to the lane that it is on."""

    async def body(place: Place) -> None:
        process = place.client()
        place.fault(place.first)
        await place.connect(process)
        place.drivers.went_over(process, 1)
        place.first.become(LaneState.ACTIVE)
        place.says(process, ClaimPhase.WENT_OVER, 1)
        await place.connect(process)
        assert place.now(process).second_lane is None
        place.fault(place.second)
        place.says(process, ClaimPhase.GOING_OVER, 1)
        assert await place.connect(process) == SHARE
        assert place.now(process).second_lane == "d-0"
        # The word of before, once more.
        assert place.drivers.went_over(process, 1) is None
        changed = place.drivers.went_over(process, 2)
        assert changed is not None
        assert (changed.lane, changed.lane_before) == ("d-0", "d-1")

    run(tmp_path, body)


def test_the_next_driver_is_made_ready_by_those_that_may_and_say_so(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        process = place.client()
        await place.connect(process)
        place.fault(place.first)
        place.drivers.went_over(process, 1)
        assert place.drivers.readiness(process.pid) == "wait"
        place.first.become(LaneState.ACTIVE)
        assert place.drivers.readiness(process.pid) == "ready"
        place.says(process, ClaimPhase.WENT_OVER, 1, makes_ready=True)
        await place.connect(process)
        assert place.now(process).second_lane == "d-0"

    run(tmp_path, body, all_ahead=True)


def test_one_that_says_that_it_went_over_before_the_guard_knows_is_looked_at_first(tmp_path: Path) -> None:
    """Or its next driver would come to the lane that it is on."""

    async def body(place: Place) -> None:
        process = place.client()
        await place.connect(process)
        place.says(process, ClaimPhase.WENT_OVER, 1, makes_ready=True)

        def fault() -> None:
            place.fault(place.first)
            place.drivers.went_over(process, 1)
            place.first.become(LaneState.ACTIVE)

        asyncio.get_running_loop().call_soon(fault)
        await place.connect(process)
        assert (place.now(process).lane, place.now(process).second_lane) == ("d-1", "d-0")

    run(tmp_path, body, all_ahead=True)
