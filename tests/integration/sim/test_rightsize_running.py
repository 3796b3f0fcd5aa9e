"""Right-sizing of a session that runs: its rate at each share, by switchovers to its standby."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pytest

from mpsguard.cli.running_session import RunningSession
from mpsguard.cli.session import CliSession
from mpsguard.cli.session_rate import Quantity, RunLimits, SessionRate
from mpsguard.sizing.procedure import NotMeasurableError, SizingPlan, size
from tests.integration.running import Running
from tests.integration.sim.test_takeover import FailoverPair

pytestmark = pytest.mark.slow(seconds=40, reason="moves a program from lane to lane")

WORKER = [sys.executable, "-m", "tests.integration.sim.worker"]
LIMITS = RunLimits(0.5, 0.0, 60.0)


@pytest.fixture
def pair() -> Iterator[FailoverPair]:
    with FailoverPair() as running:
        running.start()
        yield running


@pytest.fixture
def program(pair: FailoverPair) -> Iterator[Running]:
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_MPS_PIPE_DIRECTORY"}
    started = Running(pair.root, ("--config", str(pair.config), "--standby", "1"), WORKER, environment)
    try:
        started.expect("went on")
        yield started
    finally:
        if started.process.poll() is None:
            started.process.terminate()
            started.wait()
        started.close()


class Moves:
    """A resize that is a switchover without a share, and what was asked of it."""

    def __init__(self, pair: FailoverPair) -> None:
        self._pair = pair
        self.shares: list[float] = []

    def __call__(self, share: float) -> None:
        assert self._pair.ctl("move").returncode == 0
        self.shares.append(share)


def measured(pair: FailoverPair, moves: Moves, limits: RunLimits = LIMITS, *, slip: float = 1.0) -> RunningSession:
    session = CliSession(str(pair.run_directory), True, 10.0)
    rate = SessionRate(session, os.getuid(), "work", Quantity.PUBLICATIONS, limits)
    return RunningSession(rate, moves, limits, slip=slip, rest=100.0)


def test_a_session_is_measured_at_each_share_and_put_to_rest(pair: FailoverPair, program: Running) -> None:
    moves = Moves(pair)
    with measured(pair, moves) as session:
        found = size(session.measure, SizingPlan((10.0, 50.0, 100.0), 1.0, 1))
    assert moves.shares[:3] == [10.0, 50.0, 100.0]
    assert moves.shares[-1] == 100.0
    # A kernel of a millisecond for each state.
    assert all(seconds >= 0.001 for point in found.points for seconds in point.times)
    assert program.process.poll() is None


def test_a_share_that_it_has_needs_no_resize(pair: FailoverPair, program: Running) -> None:
    moves = Moves(pair)
    with measured(pair, moves) as session:
        session.measure(10.0)
        session.measure(10.0)
    assert moves.shares == [10.0, 100.0]


def test_an_error_leaves_it_with_the_share_of_rest(pair: FailoverPair, program: Running) -> None:
    # It would have to publish a million states.
    moves = Moves(pair)
    with pytest.raises(NotMeasurableError, match="too few"), measured(pair, moves, slip=1e-6) as session:
        session.measure(50.0)
    assert moves.shares == [50.0, 100.0]


def test_a_session_without_a_standby_cannot_be_moved(pair: FailoverPair) -> None:
    alone = pair.worker("active")
    alone.expect("went on")
    moves = Moves(pair)
    with (
        pytest.raises(NotMeasurableError, match="no standby"),
        measured(pair, moves, RunLimits(0.5, 0.0, 1.0)) as session,
    ):
        session.measure(10.0)
    assert moves.shares == []


def test_the_command_line_says_what_it_lacks(pair: FailoverPair) -> None:
    short = ("--seconds", "0.5", "--warm-up", "0", "--limit", "1")
    refused = pair.ctl("--json", "rightsize", "--running", str(os.getuid()), "nothing", *short)
    assert refused.returncode == 1
    assert "'nothing' had no standby" in json.loads(refused.stdout)["error"]["message"]
