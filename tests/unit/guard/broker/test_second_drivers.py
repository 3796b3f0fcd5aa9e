"""Second drivers: which process may connect one, to which lane, and what of a program's own word is believed."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from mpsguard.guard.broker.class_admission import levers_again
from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.broker.handshake import RefusedError
from mpsguard.guard.broker.lane_router import SecondLaneRouter
from mpsguard.guard.broker.second_decisions import refusal, repetition
from mpsguard.guard.broker.second_drivers import SecondDrivers
from mpsguard.guard.broker.second_places import Move
from mpsguard.guard.config import DomainConfig, ServiceClass
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.lanes.lane_set import LaneSet
from mpsguard.guard.lanes.levers import Levers
from mpsguard.guard.model import Client, LaneReport, LaneState
from mpsguard.linux.identity import Credentials, ProcessKey
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.preload.second_claim import ClaimPhase, SecondClaim
from tests.unit.guard.broker.test_standby_places import Uninterested

ALICE = 1001
SHARE = Levers(25.0)


class FakeLane:
    """A lane as far as second drivers look at it: the real one needs a control daemon."""

    def __init__(self, name: str) -> None:
        self.spec = SimpleNamespace(name=name)
        self.report = LaneReport(name, "d", LaneState.ACTIVE, "", 0.0, "", "")
        self.service = SimpleNamespace(client_came=lambda *_: None)

    def become(self, state: LaneState) -> None:
        self.report = msgspec.structs.replace(self.report, state=state)

    async def fresh(self) -> LaneReport:
        """See `Lane`."""
        return self.report


@dataclass
class Found:
    """What triage has found."""

    settings: DomainConfig
    culprits: set[ProcessKey]
    innocents: dict[ProcessKey, float]


class Place:
    """Two lanes, and clients that are living processes."""

    def __init__(self, path: Path, *, all_ahead: bool = False) -> None:
        self.first, self.second = FakeLane("d-0"), FakeLane("d-1")
        self.stats = StatReader()
        self.stats.start()
        self.table = ClientTable(Uninterested(), self.stats)
        self.events = EventStream()
        self.came: list[ProcessKey] = []
        self.path = path
        self.all_ahead = all_ahead
        self.culprits: set[ProcessKey] = set()
        self.innocents: dict[ProcessKey, float] = {}
        self.lanes = LaneSet(cast("Any", [self.first, self.second]), path / "active")
        self.claims: dict[ProcessKey, SecondClaim] = {}
        self.verdicts = Found(DomainConfig(), self.culprits, self.innocents)
        self.drivers = self.made()
        self.processes: list[subprocess.Popen[bytes]] = []

    def made(self) -> SecondDrivers:
        return SecondDrivers(
            "d",
            self.lanes,
            self.table,
            self.path / "second.json",
            all_ahead=self.all_ahead,
            levers=lambda _: SHARE,
            connected=lambda client: self.came.append(client.process),
            said=self.said,
            verdicts=self.verdicts,
            events=self.events,
        )

    async def said(self, process: ProcessKey) -> SecondClaim | None:
        return self.claims.get(process)

    def says(self, process: ProcessKey, phase: ClaimPhase, times: int, *, makes_ready: bool = False) -> None:
        self.claims[process] = SecondClaim(phase, "hot", "", times=times, makes_ready=makes_ready)

    def client(
        self, lane: str = "d-0", uid: int = ALICE, program: Sequence[str] = ("cat",), mode: str | None = None
    ) -> ProcessKey:
        """A client that answers each line with a byte or more; ``mode``: of the second driver that it asks for."""
        # It answers: it is not about to execute its program, which would end a client.
        process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.processes.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdout.read(1)
        handle = ProcessHandle.open(process.pid)
        client = Client(handle.key, uid, uid, "sleep", "", None, None, "d", lane, 0.0, second_driver=mode)
        self.table.add(client, handle)
        return handle.key

    def now(self, process: ProcessKey) -> Client:
        found = self.table.get(process)
        assert found is not None
        return found

    async def connect(self, process: ProcessKey, uid: int = ALICE) -> Levers:
        levers = await self.drivers.admit(process, Credentials(process.pid, uid, uid))
        lane = self.drivers.lane_of(process)
        assert lane is not None
        self.drivers.connected(process, lane.spec.name)
        return levers

    def fault(self, lane: FakeLane) -> None:
        lane.become(LaneState.FAULT)
        self.drivers.faulted(lane.spec.name)

    def close(self) -> None:
        self.table.close()
        self.stats.close()
        for process in self.processes:
            process.kill()
            process.communicate()


def run(path: Path, body: Callable[[Place], Awaitable[None]], **more: bool) -> None:
    async def whole() -> None:
        place = Place(path, **more)
        try:
            await body(place)
            await place.drivers.saved()
        finally:
            place.close()

    asyncio.run(whole())


def test_after_a_fault_it_is_on_the_other_lane_as_one_client_with_its_class(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        process = place.client()
        place.fault(place.first)
        assert await place.connect(process) == SHARE
        # Its connection for a context, or again for its driver: it may have let go of the one that had its share.
        assert await place.connect(process) == SHARE
        assert (place.now(process).lane, place.now(process).second_lane, place.came) == ("d-0", "d-1", [process])
        changed = place.drivers.went_over(process, 1)
        assert changed is not None
        assert (changed.lane, changed.lane_before, changed.second_lane) == ("d-1", "d-0", None)
        assert place.drivers.went_over(process, 1) is None
        assert len(place.table) == 1
        # Further contexts of the second driver stay on its lane.
        place.says(process, ClaimPhase.WENT_OVER, 1)
        await place.connect(process)
        assert place.now(process) == changed

    run(tmp_path, body)


def test_before_a_fault_only_those_connect_that_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpsguard.guard.broker.second_drivers._SIGN_WITHIN", 0.01)

    async def none(place: Place) -> None:
        with pytest.raises(RefusedError, match="has not faulted"):
            await place.connect(place.client())
        await place.connect(place.client(uid=0), uid=0)

    async def all_may(place: Place) -> None:
        process = place.client()
        await place.connect(process)
        assert place.now(process).second_lane == "d-1"

    run(tmp_path, none)
    run(tmp_path, all_may, all_ahead=True)


def test_a_client_that_knows_of_the_fault_before_the_guard_is_waited_for(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        process = place.client()
        asyncio.get_running_loop().call_soon(place.first.become, LaneState.FAULT)
        await place.connect(process)
        assert place.now(process).second_lane == "d-1"

    run(tmp_path, body)


def test_what_is_no_client_has_no_second_driver(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        place.client()
        place.fault(place.first)
        for stranger in (ProcessKey(1, 1), msgspec.structs.replace(place.client(), start_ticks=1)):
            with pytest.raises(RefusedError, match="no client"):
                await place.connect(stranger)

    run(tmp_path, body)


def test_that_it_went_over_is_believed_after_a_fault_and_behind_a_second_driver_alone(tmp_path: Path) -> None:
    """Or a culprit could leave the list of those that may have faulted, and another client would be accused."""

    async def body(place: Place) -> None:
        process = place.client()
        await place.connect(process)
        assert place.drivers.went_over(process, 1) is None
        place.fault(place.first)
        without = place.client()
        assert place.drivers.went_over(without, 1) is None
        assert place.drivers.went_over(process, 1) is not None

    run(tmp_path, body, all_ahead=True)


def test_a_first_driver_that_works_again_has_lost_nothing(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        process = place.client()
        await place.connect(process)
        place.fault(place.first)
        # Error 807: no work.
        place.drivers.reconnected(process)
        assert place.drivers.has_lost(place.now(process))
        place.first.become(LaneState.ACTIVE)
        place.drivers.reconnected(process)
        assert place.drivers.went_over(process, 1) is None

    run(tmp_path, body, all_ahead=True)


def test_a_second_driver_on_a_lane_that_faults_is_lost_and_goes_nowhere(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        process = place.client()
        await place.connect(process)
        place.fault(place.second)
        assert place.now(process).second_lane is None
        place.fault(place.first)
        assert place.drivers.went_over(process, 1) is None

    run(tmp_path, body, all_ahead=True)


def test_the_next_guard_knows_lanes_and_losses(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        gone, idle = place.client(), place.client()
        place.fault(place.first)
        await place.connect(gone)
        place.drivers.went_over(gone, 1)
        before = place.now(gone)
        await place.drivers.saved()
        place.first.become(LaneState.ACTIVE)  # its server was ended
        found = {key: msgspec.structs.replace(place.now(key), lane="d-0", lane_before=None) for key in (gone, idle)}
        place.table.close()
        later = place.made()
        # A fault that is seen before the clients are found takes nothing from what is known.
        later.faulted("d-1")
        await later.saved()
        assert place.made().recalled(found[gone]).lane == before.lane
        found = {key: later.recalled(client) for key, client in found.items()}
        assert (found[gone].lane, found[gone].lane_before) == (before.lane, before.lane_before)
        assert (found[idle].lane, later.has_lost(found[idle])) == ("d-0", True)
        later.settled()
        await later.saved()
        assert place.made().recalled(found[idle]) == found[idle]

    run(tmp_path, body)


def test_a_proven_culprit_does_not_go_over_to_fault_again(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        process = place.client()
        place.fault(place.first)
        place.culprits.add(process)
        with pytest.raises(RefusedError, match="proven"):
            await place.connect(process)

    run(tmp_path, body)


def test_refusals_are_told_once_and_after_a_fault(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        process = place.client()
        assert not place.drivers.refused(process)
        place.fault(place.first)
        assert [place.drivers.refused(process) for _ in range(2)] == [True, False]

    run(tmp_path, body)


def test_the_reason_of_a_refusal_says_what_is_missing() -> None:
    assert "no client" in refusal(None, lost=True, ahead=True, culprit=False, begins=True)


@pytest.mark.parametrize(
    ("culprit", "innocent_of", "trusted", "where"),
    [
        (False, None, False, "alone"),
        (False, None, True, "beside"),
        # Its lane is seen to fault later than the fault began; not so much later.
        (False, 99.9, False, "beside"),
        (False, 97.0, False, "alone"),
        (True, 99.9, True, "refused"),
    ],
)
def test_work_in_flight_is_repeated_alone_unless_its_client_is_proven_innocent_or_trusted(
    culprit: bool, innocent_of: float | None, trusted: bool, where: str
) -> None:
    assert repetition(culprit=culprit, innocent_of=innocent_of, lost_at=100.0, trusted=trusted) == where


def test_each_process_is_told_of_itself(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        innocent, other = place.client(), place.client()
        place.fault(place.first)
        place.innocents[innocent] = time.monotonic()
        assert [place.drivers.repetition(each.pid) for each in (innocent, other)] == ["beside", "alone"]
        assert place.drivers.repetition(1) == "alone"
        place.culprits.add(innocent)
        assert place.drivers.repetition(innocent.pid) == "refused"
        place.verdicts.settings = DomainConfig(repetition="beside")
        assert place.drivers.repetition(other.pid) == "beside"

    run(tmp_path, body)


@pytest.mark.parametrize(("moved_at", "share"), [(None, 50.0), (1.0, 30.0)])
def test_a_client_that_has_moved_has_the_share_that_it_moved_with_at_each_connection(
    moved_at: float | None, share: float
) -> None:
    process = ProcessKey(1, 1)
    client = Client(
        process, 1, 1, "", "", None, None, "d", "d-0", 0.0, service_class="batch", sm_share=30.0, moved_at=moved_at
    )
    of_program = cast("Any", SimpleNamespace(of=lambda *_: 50.0))
    unlimited = cast("Any", SimpleNamespace(of=lambda _: None))
    classes = (ServiceClass(name="batch", sm_share=60.0),)
    assert levers_again(client, classes, of_program, unlimited).share == share


def test_a_handshake_that_is_overtaken_by_a_request_to_move_gives_no_server_of_the_other_lane(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        process = place.client()
        router = SecondLaneRouter(place.lanes, place.drivers)
        other = router.for_client(process, Credentials(process.pid, ALICE, ALICE), None)
        assert router.may_have(process, other)
        # Another share of the lane that it is on.
        place.drivers.begin_move(process, Move("d-0", 30.0, 1))
        assert not router.may_have(process, other)
        assert router.may_have(process, place.lanes.active)

    run(tmp_path, body)
