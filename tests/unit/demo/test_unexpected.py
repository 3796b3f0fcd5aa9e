"""What the tour did not expect is shown as it was observed, and fails the run."""

from collections.abc import Iterator

import pytest

from examples.demo import actor, machine, main
from examples.demo.fact import Cell, Fact
from examples.demo.scenes import aftermath
from examples.demo.screen import Screen
from examples.demo.stage import GuardedPlace, Scene, Stage, StockPlace
from tests.bench.core.bench import Bench
from tests.bench.core.errors import SuiteError
from tests.unit.demo import scratch

pytestmark = pytest.mark.slow(seconds=10, reason="runs scenes of the demo")

_STRANGE = [Fact("2 of 3 clients", harm=True, as_expected=False, expected="3 of 3 clients")]


@pytest.fixture
def stage() -> Iterator[Stage]:
    with scratch.directory() as root:
        programs = machine.simulated().build(root)
        bench = Bench(root, programs, quick=True, say=lambda _: None)
        yield Stage(bench, programs, Screen(transcript=True, fast=True))


def broken(_: StockPlace) -> Cell:
    raise SuiteError("the daemon sulks")


def strange(_: GuardedPlace) -> Cell:
    return _STRANGE


def test_it_is_marked_and_fails_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(main, "SCENES", [Scene("1 a strange scene", "Two things go wrong.", broken, strange)])
    assert main.main(["--fast", "--transcript"]) == 1
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "UNEXPECTED: 2 of 3 clients" in printed
    assert "UNEXPECTED: not observed: the daemon sulks" in printed
    assert "2 observation(s) differ" in printed


def test_the_mark_says_what_was_expected() -> None:
    (fact,) = _STRANGE
    assert str(fact) == "UNEXPECTED: 2 of 3 clients (expected: 3 of 3 clients)"


def test_neighbours_that_live_are_reported_alive(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a fault, the very scene that shows deaths shows none."""
    monkeypatch.setattr(actor, "SHOWS", 0.2)
    with stage.stock() as place:
        neighbours, late = aftermath.stock(place, lambda _: None)
    assert neighbours.text == "neighbours: 3 of 3 lived on"
    assert late.text == "late: 3 of 3 served"
    assert [(fact.harm, fact.as_expected) for fact in (neighbours, late)] == [(False, False), (False, False)]


def test_isolation_would_be_detected(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the guard too: what was not isolated is what died, not what the tour says of itself."""
    monkeypatch.setattr(actor, "SHOWS", 0.2)
    monkeypatch.setattr("examples.demo.stage._PARKS", 0.2)
    with stage.guarded() as place:
        neighbours, late = aftermath.guarded(place, lambda _: None, "why")
    assert neighbours.text == "neighbours: 3 of 3 lived on"
    assert late.text == "late: 0 of 3 parked, 3 of 3 served"
    assert not neighbours.as_expected
    assert not late.as_expected
