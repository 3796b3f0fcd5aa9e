"""The suite `second_driver` on the simulated stack: what it counts, what is equal, and that it can say no."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest

from tests.bench.core.bench import Bench
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import Event, Outcome
from tests.bench.core.finding import Finding
from tests.bench.second_driver import alone, busy, compiled, cost, idle, moves, second, trials
from tests.bench.second_driver.programs import CPP, State, cublas
from tests.bench.second_driver.second import Mode, Takeover
from tests.bench.second_driver.trials import Trial, Undisturbed
from tests.bench.simulated import SimulatedPrograms
from tests.harness.leftovers import end_all
from tests.unit.strict_nvcc import compiles

TAKEN = Takeover(7, "taken_over", None, "", 40.0)
REFUSED = Takeover(7, "refused", "work_in_flight", "", 1.0)
UNDISTURBED = Undisturbed("it", ("a", "a"))


@pytest.fixture
def bench(tmp_path: Path) -> Iterable[Bench]:
    yield Bench(tmp_path, SimulatedPrograms(), True, lambda _text: None)
    assert not end_all(tmp_path)


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.row.name: finding for finding in findings}


def finished(digest: str = "a", milliseconds: float = 45.0) -> Outcome:
    events: list[tuple[str, dict[str, object]]] = [
        ("went_on", {"milliseconds": milliseconds}),
        ("result", {"digest": digest}),
        ("finished", {}),
    ]
    return Outcome("it", 7, 0, [Event(name, 7, 1.0, 1.0, members) for name, members in events], ())


def died(code: int = 719) -> Outcome:
    return Outcome("it", 7, 3, [Event("died", 7, 1.0, 1.0, {"code": code, "name": "x"})], ())


@pytest.mark.slow(seconds=15, reason="starts daemons and clients on the simulated stack")
def test_idle_programs_are_seen_to_go_on_and_those_of_stock_to_end(bench: Bench) -> None:
    found = by_name(idle.measure(bench))
    for mode in Mode:
        going = found[f"{CPP}, {mode}: idle programs that go on after a neighbour's SM fault"].row
        assert (going.value, going.count, going.holds) == (2, 2, True)
        assert going.peer is not None
        assert (going.peer.value, going.peer.count) == (0, 2)
        assert found[f"{CPP}, {mode}: results equal to those of an undisturbed run, bit for bit"].row.holds
        assert len(found[f"{CPP}, {mode}: takeover"].samples) == 2
        assert len(found[f"{CPP}, {mode}: first kernel after the word, takeover included"].samples) == 2
    assert found["second driver: repetitions not made or not proven"].row.holds


@pytest.mark.slow(seconds=20, reason="starts daemons and clients on the simulated stack")
def test_busy_programs_are_seen_to_go_on_and_those_of_stock_to_end(bench: Bench) -> None:
    found = by_name(busy.measure(bench))
    for mode in Mode:
        going = found[f"{CPP}, {mode}, busy: busy programs that go on after a neighbour's SM fault"].row
        assert (going.value, going.count, going.holds) == (2, 2, True)
        assert going.peer is not None
        assert (going.peer.value, going.peer.count) == (0, 2)
        assert found[f"{CPP}, {mode}, busy: results equal to those of an undisturbed run, bit for bit"].row.holds
        assert len(found[f"{CPP}, {mode}, busy: takeover"].samples) == 2
        assert len(found[f"{CPP}, {mode}, busy: longest round, takeover included"].samples) == 2


@pytest.mark.slow(seconds=15, reason="starts daemons and clients on the simulated stack")
def test_a_fault_that_harms_no_stock_program_proves_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed assertion ends its own program alone."""
    monkeypatch.setattr(idle, "QUICK_FAULTS", ("assert",))
    found = by_name(idle.measure(bench))
    row = found["second driver: repetitions not made or not proven"]
    assert (row.row.value, row.row.holds) == (1, False)
    assert "did not strike" in row.note
    assert f"{CPP}, cold: takeover" not in found


@pytest.mark.slow(seconds=30, reason="starts daemons and clients on the simulated stack")
def test_a_fault_that_ends_no_lane_is_tried_again_and_proves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "FAULT", "assert")
    monkeypatch.setattr(compiled, "_ATTEMPTS", 2)
    said: list[str] = []
    found = by_name(compiled.measure(Bench(bench.root, bench.programs, True, said.append)))
    row = found["second driver: repetitions not made or not proven"]
    assert (row.row.value, row.row.count, row.row.holds) == (2, 2, False)
    assert [each.split(":")[0] for each in said if "did not strike" in each] == ["idle", "busy"] * 2
    assert not found[f"{CPP}, cold: results equal to those of an undisturbed run, bit for bit"].row.holds


@pytest.mark.slow(seconds=20, reason="starts daemons and clients on the simulated stack")
def test_loops_with_a_second_driver_are_compared_with_the_preload_alone(bench: Bench) -> None:
    found = by_name(cost.measure(bench))
    for program, way in product((cost.LAUNCHES, cost.DECODE, cost.TRAINING), cost.WAYS[1:]):
        name = f"{program.names[0]}, rate {way.name} over the preload alone (paired ratios)"
        row = found[name].row
        assert row.peer is not None
        assert (row.count, row.peer.count) == (2, 2)


def test_each_sm_fault_is_committed_five_times() -> None:
    assert len(idle.FAULTS) == idle.ROUNDS == 5
    assert set(idle.QUICK_FAULTS) < set(idle.FAULTS)


@pytest.mark.parametrize(
    ("mode", "outcome", "takeover", "went_on"),
    [
        (Mode.COLD, finished(), TAKEN, True),
        # Without a takeover nothing was survived.
        (Mode.COLD, finished(), None, False),
        (Mode.HOT, died(), TAKEN, False),
        (Mode.HOT, died(), REFUSED, False),
        (None, finished(), None, True),
        (None, died(), None, False),
    ],
)
def test_a_program_goes_on_if_it_finishes_by_its_second_driver(
    mode: Mode | None, outcome: Outcome, takeover: Takeover | None, went_on: bool
) -> None:
    assert Trial("it", mode, "trap", outcome, takeover).went_on is went_on


def test_a_lost_program_and_another_result_do_not_hold() -> None:
    made = [
        Trial("it", Mode.COLD, "trap", finished(), TAKEN),
        Trial("it", Mode.COLD, "stack", finished("b"), TAKEN),
        Trial("it", Mode.COLD, "shared", died(), REFUSED),
        Trial("it", None, "trap", died()),
        Trial("another", Mode.COLD, "trap", died(), REFUSED),
    ]
    found = by_name(trials.rows("it", made, UNDISTURBED, 3, "a note", state=State.IDLE))
    going = found["it, cold: idle programs that go on after a neighbour's SM fault"]
    assert (going.row.value, going.row.count, going.row.holds) == (2, 3, False)
    assert going.note == "a note; not: shared: refused (work_in_flight: ) in 1.0 ms (1); stock: died: 719 x (1)"
    equal = found["it, cold: results equal to those of an undisturbed run, bit for bit"].row
    assert (equal.value, equal.holds) == (1, False)
    assert found["it, cold: takeover"].samples == (40.0, 40.0)


@pytest.mark.parametrize("digests", [("a", "b"), ("a", None), (None, None), ()])
def test_nothing_is_equal_to_runs_that_do_not_agree(digests: tuple[str | None, ...]) -> None:
    made = [Trial("it", mode, "trap", finished(), TAKEN) for mode in Mode]
    found = by_name(trials.rows("it", made, Undisturbed("it", digests), 1, "", state=State.IDLE))
    assert not found["it, hot: results equal to those of an undisturbed run, bit for bit"].row.holds


@pytest.mark.parametrize(("mode", "milliseconds", "holds"), [("cold", 500.0, True), ("hot", 50.1, False)])
def test_takeovers_have_a_bar_in_each_mode(mode: str, milliseconds: float, holds: bool) -> None:
    made = [Trial("it", Mode(mode), "trap", finished(), Takeover(7, "taken_over", None, "", milliseconds))]
    found = by_name(trials.rows("it", made, UNDISTURBED, 1, "", state=State.IDLE))
    assert found[f"it, {mode}: takeover"].row.holds is holds


def test_a_report_is_one_line_or_none(tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    assert second.takeover(report) is None
    line = '{"pid": 7, "outcome": "refused", "reason": "work_in_flight", "detail": "", "milliseconds": 1.000}\n'
    report.write_text(line)
    assert second.takeover(report) == REFUSED
    for wrong in (line * 2, line[:20]):
        report.write_text(wrong)
        with pytest.raises(SuiteError):
            second.takeover(report)


def test_cublas_is_found_in_the_toolkit_and_in_wheels(tmp_path: Path) -> None:
    toolkit, wheels = tmp_path / "cuda", tmp_path / "nvidia"
    assert list(cublas(toolkit, (wheels,))) == []
    files = {
        toolkit / "targets/x86_64-linux/lib/libcublas.so",
        wheels / "cu13/include/cublas_v2.h",
        wheels / "cu13/lib/libcublas.so.13",
    }
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    header, library = wheels / "cu13/include", wheels / "cu13/lib"
    of_wheel = ("-I", str(header), "-Xlinker", f"{library}/libcublas.so.13", "-Xlinker", f"-rpath={library}")
    assert list(cublas(toolkit, (wheels,))) == [("-lcublas",), of_wheel]


@pytest.mark.slow(seconds=10, reason="compiles CUDA programs")
def test_the_programs_compile_without_a_warning() -> None:
    compiles("second_idle.cu", "-DNO_BLAS")
    compiles("second_busy.cu")


@pytest.mark.slow(seconds=30, reason="starts guards with two lanes and clients on the simulated stack")
def test_culprits_are_named_by_their_repetition_and_innocents_go_on(bench: Bench) -> None:
    found = by_name(alone.measure(bench))
    stopped = found["culprits that fault again alone, and get their error"].row
    assert (stopped.value, stopped.count, stopped.holds) == (2, 2, True)
    # There is no kernel log of a simulated GPU: the guard has the program's word alone, which is no proof.
    proven = found["culprits of a lane's fault that are proven by that"].row
    assert (proven.value, proven.holds) == (0, False)
    assert "named: likely" in found["culprits that fault again alone, and get their error"].note
    assert found["innocents that a verdict names"].row.holds
    assert found["programs of the other lane that a repetition ends"].row.holds
    equal = found["innocents that go on with equal results, bit for bit"].row
    assert (equal.value, equal.count, equal.holds) == (4, 4, True)
    for mode in Mode:
        assert len(found[f"takeover, {mode}, with the repetition alone"].samples) == 2
    assert found["repetition alone: repetitions not made or not proven"].row.holds


def test_a_lane_that_a_repetition_ends_and_an_accused_innocent_do_not_hold(bench: Bench) -> None:
    study = alone.Study(bench)
    innocent = alone.Innocent(Mode.COLD, finished("b"), Takeover(7, "taken_over", None, "", 400.0, 9, 300.0))
    study.cases.append(alone.Case("trap", Mode.COLD, REFUSED, (innocent,), died(), "", 1))
    found = by_name(study.rows())
    for name in ("innocents that a verdict names", "programs of the other lane that a repetition ends"):
        assert (found[name].row.value, found[name].row.holds) == (1, False)
    assert not found["culprits that fault again alone, and get their error"].row.holds
    assert found["innocents that go on with equal results, bit for bit"].row.value == 0
    assert not found["repetition alone: repetitions not made or not proven"].row.holds


@pytest.mark.slow(seconds=30, reason="starts a guard with two lanes and clients on the simulated stack")
def test_programs_are_seen_to_move(bench: Bench) -> None:
    found = by_name(moves.measure(bench))
    for change in ("other lane", "other share"):
        assert found[f"{change}: programs under load that go on"].row.holds
        assert found[f"{change}: results equal to an undisturbed run's, bit for bit"].row.holds
        for mode in Mode:
            assert found[f"{change}, {mode}: the program stands still"].samples == (1.0,)
