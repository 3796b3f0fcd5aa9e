"""What sensors see, and which lane's newcomers wait for it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.config import DomainConfig, GuardConfig
from mpsguard.guard.daemon.lane_specs import lane_spec
from mpsguard.guard.evidence import ClientCame, Evidence, ProcessEnded, Source, UvmFault, Xid
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.incidents.recovery_signs import RecoverySigns
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.lanes.lane_set import LaneSet
from mpsguard.guard.lanes.settings import SettingsStore
from mpsguard.guard.model import LaneSettings, LaneState, Server
from mpsguard.guard.remedies.held_lifelines import IDLE
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.stat_reader import StatReader
from tests.integration.transitions.bench import Uninterested

CLIENT = ProcessKey(4301, 7)
SERVER = 479


def said(what: ClientCame | ProcessEnded | UvmFault | Xid, process: ProcessKey | None = CLIENT) -> Evidence:
    return Evidence(source=Source.KERNEL_LOG, observed_at=0.0, what=what, process=process)


def with_lane(root: Path, test: Callable[[RecoverySigns, Lane], None]) -> None:
    """Run a test with the signs of one domain and its lane, which has a server and the client."""

    async def start(_: object) -> None:
        """Never called: the lane does not run."""

    async def scenario() -> None:
        stats = StatReader()
        spec = lane_spec(GuardConfig(str(root), str(root), str(root)), DomainConfig(name="d"), "/bin/false", 0)
        store = SettingsStore(root / "settings.json", LaneSettings())
        lane = Lane(spec, store, root / "levers.json", lambda *_: None, stats=stats, start=start)
        lane._report(LaneState.ACTIVE, "well", (Server(ProcessKey(SERVER, 1), "ACTIVE"),))
        lanes = LaneSet([lane], root / "active.json")
        signs = RecoverySigns([DomainView(DomainConfig(name="d"), ClientTable(Uninterested(), stats), lanes)])
        signs.observe(said(ClientCame("d", "d-0")))
        test(signs, lane)
        stats.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("ended", "waits"),
    [
        (ProcessEnded(0, None, False, None), False),
        (ProcessEnded(1, None, False, None), True),
        (ProcessEnded(None, 9, False, None), True),
        (ProcessEnded(None, None, False, None), True),
        (ProcessEnded(0, None, False, None, execed="another program"), True),
    ],
)
def test_newcomers_wait_after_an_end_other_than_by_status_0(tmp_path: Path, ended: ProcessEnded, waits: bool) -> None:
    def test(signs: RecoverySigns, lane: Lane) -> None:
        signs.observe(said(ended))
        assert (lane.recovery.record.left_badly is not None) is waits
        signs.observe(said(ProcessEnded(None, 9, False, None), ProcessKey(1, 1)))
        assert (lane.recovery.record.left_badly is not None) is waits, "another's process"

    with_lane(tmp_path, test)


@pytest.mark.parametrize(
    ("what", "process", "counts"),
    [
        (Xid(31, SERVER, ""), None, True),
        (Xid(43, SERVER, ""), None, True),
        # Contained, or of a program that is no client.
        (Xid(94, SERVER, ""), None, False),
        (Xid(31, 1, ""), None, False),
        (UvmFault(0, "read", "", False), CLIENT, False),
    ],
)
def test_a_sign_is_a_fatal_fault_of_the_lanes_own_work(
    tmp_path: Path, what: Xid | UvmFault, process: ProcessKey | None, counts: bool
) -> None:
    def test(signs: RecoverySigns, lane: Lane) -> None:
        signs.observe(said(what, process))
        assert bool(lane.recovery.why()) is counts

    with_lane(tmp_path, test)


@pytest.mark.parametrize(("why", "waits"), [(IDLE, False), ("its time is over", True)])
def test_work_that_a_lifeline_kept_may_fault_when_that_is_let_go_of(tmp_path: Path, why: str, waits: bool) -> None:
    def test(signs: RecoverySigns, lane: Lane) -> None:
        signs.observe(said(ProcessEnded(0, None, False, None, kept=True)))
        assert lane.recovery.record.left_badly is None
        signs.lifeline_released(CLIENT.pid, why)
        assert (lane.recovery.record.left_badly is not None) is waits

    with_lane(tmp_path, test)
