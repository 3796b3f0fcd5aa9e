"""The tour as its reader gets it: it comes to its end, leaves nothing, and the README shows what it shows."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.demo.scenes import SCENES, standby
from tests.harness import leftovers
from tests.unit.demo import scratch

pytestmark = pytest.mark.slow(seconds=60, reason="runs the whole demo")


@dataclass(frozen=True)
class Run:
    status: int
    out: str
    err: str
    remains: list[str]


def done(place: Path, process: "subprocess.Popen[str]") -> Run:
    out, err = process.communicate(timeout=scratch.DEADLINE)
    processes = leftovers.find(place)
    remains = [f"process {process.key.pid}" for process in processes] + [str(path) for path in place.iterdir()]
    return Run(process.returncode, out, err, remains)


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Run, Run]]:
    """The whole tour, and beside it one scene of another, which it must not meet."""
    with scratch.directory() as first, scratch.directory() as second:
        whole = scratch.start(first, "--fast", "--transcript")
        scene = scratch.start_scene(standby.SCENE.name, second)
        beside = done(second, scene)
        yield done(first, whole), beside


@pytest.fixture(scope="module")
def run(both: tuple[Run, Run]) -> Run:
    """The whole tour."""
    return both[0]


def table(text: str) -> list[str]:
    """The summary: from its head to the first line that is empty or closes a block."""
    lines = text.splitlines()
    begin = next(index for index, line in enumerate(lines) if line.startswith("scene  "))
    end = next(index for index in range(begin, len(lines)) if lines[index] in ("", "```"))
    return lines[begin:end]


def is_as_expected(run: Run) -> None:
    assert run.status == 0, run.out + run.err
    assert "UNEXPECTED" not in run.out
    assert run.err == ""
    assert run.remains == []


def test_everything_comes_as_expected_and_nothing_remains(both: tuple[Run, Run]) -> None:
    for run in both:
        is_as_expected(run)


@pytest.mark.soak
def test_two_whole_tours_do_not_meet() -> None:
    with scratch.directory() as first, scratch.directory() as second:
        started = [(place, scratch.start(place, "--fast", "--transcript")) for place in (first, second)]
        for place, process in started:
            is_as_expected(done(place, process))


def test_it_says_at_both_ends_that_it_is_simulated(run: Run) -> None:
    lines = run.out.splitlines()
    assert "SIMULATED" in "".join(lines[:3])
    assert "SIMULATED" in "".join(lines[-3:])


def test_every_scene_is_in_the_table(run: Run) -> None:
    assert [scene.name for scene in SCENES if not any(line.startswith(scene.name) for line in table(run.out))] == []


def test_a_transcript_is_plain_and_of_one_width(run: Run) -> None:
    assert "\x1b" not in run.out
    assert [line for line in run.out.splitlines() if len(line) > 100 or line != line.rstrip()] == []


def test_the_readme_shows_what_a_run_shows(run: Run) -> None:
    readme = (scratch.REPOSITORY / "README.md").read_text(encoding="utf-8")
    block = readme.split("<!-- demo:begin -->")[1].split("<!-- demo:end -->")[0]
    assert "simulated" in block
    assert len(block.strip().splitlines()) <= 32
    assert table(block) == table(run.out), "paste the table that `scripts/demo --fast --transcript` prints"
