"""A little of the fuzzing campaign for every change, and that the campaign sees what it is there to see."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fault_injection.fuzzing import campaign
from fault_injection.fuzzing.campaign import Chunk, Done, Failure
from fault_injection.fuzzing.surface import Surface
from fault_injection.fuzzing.surfaces import IN_PROCESS

SEED = 1
CASES = 300


@pytest.mark.parametrize("name", IN_PROCESS)
def test_no_hostile_input_is_more_than_a_reader_expects(name: str) -> None:
    surface = IN_PROCESS[name]()
    try:
        assert [failure for number in range(CASES) if (failure := campaign.one(surface, SEED, number))] == []
        surface.check()
    finally:
        surface.close()


@pytest.mark.parametrize("name", IN_PROCESS)
def test_a_case_is_told_by_its_number(name: str) -> None:
    surface = IN_PROCESS[name]()
    try:
        first = [campaign.case(surface, SEED, number) for number in range(20)]
        assert [campaign.case(surface, SEED, number) for number in reversed(range(20))] == first[::-1]
        assert [campaign.case(surface, SEED + 1, number) for number in range(20)] != first
    finally:
        surface.close()


class Broken(Surface[int]):
    """Goes wrong in a way of its own in the third case."""

    name = "broken"
    share = 1

    def make(self, chance: Random) -> int:
        return chance.getrandbits(32)

    def feed(self, case: int) -> None:
        if case == campaign.case(self, SEED, 2):
            self.fail()

    def fail(self) -> None:
        raise ValueError("as it does")


class Dies(Broken):
    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Hangs(Broken):
    patience = 10.0

    def fail(self) -> None:
        time.sleep(1000)


class Leaks(Broken):
    def fail(self) -> None:
        self.leaked = os.open(os.devnull, os.O_RDONLY)

    def close(self) -> None:
        os.close(self.leaked)


class Gorges(Broken):
    def fail(self) -> None:
        bytearray(2 << 30)


def run(surface: type[Surface[Any]], jobs: int = 1) -> tuple[list[Failure], int]:
    """What failed, and how many cases were run."""
    outcomes = list(campaign.run({surface.name: surface}, SEED, [Chunk(surface.name, 0, 5)], jobs))
    cases = sum(outcome.cases for outcome in outcomes if isinstance(outcome, Done))
    return [outcome for outcome in outcomes if isinstance(outcome, Failure)], cases


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_case_is_the_same_in_every_process(tmp_path: Path) -> None:
    """Sets of names are in another order in each, and a failure is told by its number alone."""
    program = (
        "from fault_injection.fuzzing import campaign\n"
        "from fault_injection.fuzzing.surfaces import IN_PROCESS\n"
        "for name in IN_PROCESS:\n"
        "    surface = IN_PROCESS[name]()\n"
        "    print(name, [repr(campaign.case(surface, 1, number)) for number in range(100)])\n"
        "    surface.close()\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "TMPDIR": str(tmp_path)},
            capture_output=True,
            check=True,
            timeout=100,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


@pytest.mark.parametrize(
    ("surface", "number", "what"),
    [(Broken, 2, "ValueError"), (Dies, 2, "-9"), (Leaks, -1, "1 more descriptors"), (Gorges, 2, "MemoryError")],
)
def test_a_failure_is_reported_with_its_number_and_the_rest_is_run(
    surface: type[Broken], number: int, what: str
) -> None:
    failures, cases = run(surface)
    assert [(failure.number, failure.hang) for failure in failures] == [(number, False)]
    assert what in failures[0].what
    assert cases == 5


@pytest.mark.slow(seconds=12, reason="waits for a case that does not end")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_case_that_does_not_end_is_ended() -> None:
    failures, cases = run(Hangs)
    assert [(failure.number, failure.hang) for failure in failures] == [(2, True)]
    assert cases == 5


@pytest.mark.parametrize("cases", [1, 16, 1000, 10_000_000])
def test_all_cases_are_shared_out(cases: int) -> None:
    chunks = campaign.chunks(IN_PROCESS, cases)
    assert sum(chunk.end - chunk.first for chunk in chunks) == cases
    assert all(chunk.first < chunk.end for chunk in chunks)
