"""The tour as its reader gets it: it comes to its end, leaves nothing, and the README shows what it shows."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from examples.demo.scenes import SCENES
from tests.harness import leftovers
from tests.unit.demo import scratch

pytestmark = pytest.mark.slow(seconds=60, reason="runs the whole demo")


@dataclass(frozen=True)
class Run:
    status: int
    out: str
    err: str
    remains: list[str]


@pytest.fixture(scope="module")
def runs() -> Iterator[list[Run]]:
    """Two at once, which must not meet."""
    with scratch.directory() as first, scratch.directory() as second:
        started = [(place, scratch.start(place, "--fast", "--transcript")) for place in (first, second)]
        done = []
        for place, process in started:
            out, err = process.communicate(timeout=scratch.DEADLINE)
            processes = leftovers.find(place)
            remains = [f"process {process.key.pid}" for process in processes] + [str(path) for path in place.iterdir()]
            done.append(Run(process.returncode, out, err, remains))
        yield done


def table(text: str) -> list[str]:
    """The summary: from its head to the first line that is empty or closes a block."""
    lines = text.splitlines()
    begin = next(index for index, line in enumerate(lines) if line.startswith("scene  "))
    end = next(index for index in range(begin, len(lines)) if lines[index] in ("", "```"))
    return lines[begin:end]


def test_everything_comes_as_expected(runs: list[Run]) -> None:
    for run in runs:
        assert run.status == 0, run.out + run.err
        assert "UNEXPECTED" not in run.out
        assert run.err == ""


def test_nothing_remains(runs: list[Run]) -> None:
    assert [run.remains for run in runs] == [[], []]


def test_it_says_at_both_ends_that_it_is_simulated(runs: list[Run]) -> None:
    for run in runs:
        lines = run.out.splitlines()
        assert "SIMULATED" in "".join(lines[:3])
        assert "SIMULATED" in "".join(lines[-3:])


def test_every_scene_is_in_the_table(runs: list[Run]) -> None:
    for run in runs:
        assert [scene.name for scene in SCENES if not any(line.startswith(scene.name) for line in table(run.out))] == []


def test_a_transcript_is_plain_and_of_one_width(runs: list[Run]) -> None:
    for run in runs:
        assert "\x1b" not in run.out
        assert [line for line in run.out.splitlines() if len(line) > 100 or line != line.rstrip()] == []


def test_the_readme_shows_what_a_run_shows(runs: list[Run]) -> None:
    readme = (scratch.REPOSITORY / "README.md").read_text(encoding="utf-8")
    block = readme.split("<!-- demo:begin -->")[1].split("<!-- demo:end -->")[0]
    assert "simulated" in block
    assert len(block.strip().splitlines()) <= 30
    assert table(block) == table(runs[0].out), "paste the table that `scripts/demo --fast --transcript` prints"
