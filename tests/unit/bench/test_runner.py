"""The runner: errors become rows, and nothing is left running."""

import signal
import tarfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.bench.broker import commands, fault_parking
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import MPS_SERVER_NOT_READY
from tests.bench.core.finding import Finding, all_of, not_measured
from tests.bench.core.programs import Work
from tests.bench.core.runner import run
from tests.bench.core.stock import StockDaemon
from tests.bench.simulated import SimulatedPrograms, simulated_programs
from tests.harness.leftovers import find

pytestmark = pytest.mark.slow(seconds=40, reason="starts guards on the simulated stack")


def nothing(_bench: Bench) -> Iterator[Finding]:
    yield all_of("fine", 1, 1, "things")


def fails(bench: Bench) -> Iterator[Finding]:
    yield all_of("half", 1, 1, "things")
    (bench.root / "guard-1.log").write_text("last words\n")
    raise SuiteError("it broke")


def go(*measurements: Measurement, deadline: float = 60.0, keep_logs: Path | None = None) -> list[Finding]:
    said: list[str] = []
    return run(measurements, simulated_programs, quick=True, deadline=deadline, keep_logs=keep_logs, say=said.append)


def test_an_error_is_a_row_and_the_next_measurement_runs(tmp_path: Path) -> None:
    archive = tmp_path / "logs.tgz"
    rows = go(Measurement("bad", "", fails), Measurement("good", "", nothing), keep_logs=archive)
    assert [(each.row.name, each.row.holds) for each in rows] == [
        ("half", True),
        ("bad: not measured", False),
        ("fine", True),
    ]
    assert rows[1].note == "it broke"
    with tarfile.open(archive) as opened:
        assert opened.getnames() == ["guard-1.log"]


@pytest.mark.parametrize("how", ["deadline", "SIGTERM"])
def test_findings_are_reported_measurement_by_measurement_up_to_the_end(how: str) -> None:
    told: list[list[str]] = []

    def hangs(_bench: Bench) -> Iterator[Finding]:
        yield all_of("half", 1, 1, "things")
        # The second one has begun only after the first one was told of.
        assert told == [["fine"]]
        if how == "SIGTERM":
            signal.raise_signal(signal.SIGTERM)
        threading.Event().wait(600)

    run(
        [Measurement("good", "", nothing), Measurement("hangs", "", hangs), Measurement("next", "", nothing)],
        simulated_programs,
        quick=True,
        deadline=3.0 if how == "deadline" else 60.0,
        keep_logs=None,
        say=lambda _text: None,
        found=lambda findings: told.append([each.row.name for each in findings]),
    )
    assert told == [["fine"], ["half", "hangs: not measured", "next: not measured"]]


def test_rows_that_fail_alike_have_names_of_their_own() -> None:
    """With one name, the file and all that it had was lost."""

    def twice(_bench: Bench) -> Iterator[Finding]:
        yield not_measured("a server, to its end", "over its deadline")
        yield not_measured("a server, to its end", "over its deadline")

    rows = go(Measurement("twice", "", twice), Measurement("again", "", twice))
    assert len({each.row.name for each in rows}) == 4


def test_no_logs_are_kept_when_all_holds(tmp_path: Path) -> None:
    assert all(each.row.holds for each in go(Measurement("good", "", nothing), keep_logs=tmp_path / "logs.tgz"))
    assert not (tmp_path / "logs.tgz").exists()


@pytest.mark.parametrize("how", ["deadline", "SIGTERM"])
def test_a_stopped_run_ends_what_it_started(how: str) -> None:
    roots: list[Path] = []

    def hangs(bench: Bench) -> Iterator[Finding]:
        roots.append(bench.root)
        with bench.stock() as stock, Clients() as clients:
            bench.workers(clients, stock, 1, Work(seconds=600, controlled=True))
            assert find(bench.root)
            if how == "SIGTERM":
                signal.raise_signal(signal.SIGTERM)
            threading.Event().wait(600)
        yield all_of("never", 1, 1, "things")

    rows = go(
        Measurement("hangs", "", hangs), Measurement("next", "", nothing), deadline=3.0 if how == "deadline" else 60
    )
    assert [each.row.name for each in rows] == ["hangs: not measured", "next: not measured"]
    assert not find(roots[0])
    assert not roots[0].exists()


def test_a_left_over_daemon_is_reported_and_ended() -> None:
    roots: list[Path] = []
    kept: list[AbstractContextManager[StockDaemon]] = []  # never left, and never collected

    def leaks(bench: Bench) -> Iterator[Finding]:
        roots.append(bench.root)
        kept.append(bench.stock())
        kept[0].__enter__()
        yield all_of("fine", 1, 1, "things")

    rows = go(Measurement("leaks", "", leaks))
    assert [each.row.holds for each in rows] == [True, False]
    assert "nvidia-cuda-mps-control" in rows[1].note
    assert not find(roots[0])


def test_two_stock_daemons_answer_every_command_alike(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SimulatedPrograms(), True, lambda _text: None)
    with bench.stock() as one, bench.stock() as other:
        replies = [commands._ask_all(bench, target) for target in (one, other)]
    assert replies[0] == replies[1]
    assert len(replies[0]) == len(commands.COMMANDS)


def test_stock_mps_refuses_clients_after_a_fault(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SimulatedPrograms(), True, lambda _text: None)
    fates = fault_parking.Fates()
    with bench.stock() as stock, Clients() as clients:
        # It never asks what became of the GPU: as long as its context stands, the server tears down.
        bench.workers(clients, stock, 1, Work(seconds=60, controlled=True))
        fault_parking._one(bench, stock, fates)
    assert fates.late
    assert {outcome.code for outcome in fates.late} == {MPS_SERVER_NOT_READY}
