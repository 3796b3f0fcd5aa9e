"""What the suite holds to be the same, of programs under the preload and plainly, and that it can say no."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.core.bench import Bench
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import Event, Outcome
from tests.bench.isolation import nccl, programs, sameness, sanitizer, zone_api
from tests.bench.isolation.preloaded import Served
from tests.bench.isolation.sameness import Compared, Program, Run
from tests.bench.isolation.sanitizer import Report
from tests.bench.simulated import SimulatedPrograms

PROGRAM = Program("it", ("train",))
ONE, OTHER, FAILED = Run(("a",)), Run(("b",)), Run(failure="it died")


@pytest.mark.parametrize(
    ("plain", "ours", "same"),
    [
        ([ONE, ONE], [ONE, ONE], 2),
        ([ONE, ONE], [ONE, OTHER], 1),
        ([ONE, ONE], [ONE, FAILED], 1),
        ([ONE, OTHER], [ONE, ONE], 0),
        ([FAILED, FAILED], [FAILED, FAILED], 0),
        ([ONE, ONE], [], 0),
    ],
)
def test_a_program_holds_if_every_run_is_the_plain_one_again(plain: list[Run], ours: list[Run], same: int) -> None:
    row = Compared(PROGRAM, 2, plain, ours).finding().row
    assert (row.value, row.count, row.holds) == (same, 2, same == 2)


def test_a_preload_that_served_nothing_shows_nothing() -> None:
    at_work, idle = Served(3, 1, {"plain_capture": 1}), Served(0, 4, {"plain_devices": 4})
    two = Program("it", ("allreduce",), ({}, {}))
    for served, holds in (([at_work, at_work], True), ([at_work, idle], False), ([at_work], False)):
        assert sameness.at_work([Compared(two, 1, [ONE], [ONE], served)], "row").row.holds is holds
    assert not sameness.at_work([], "row").row.holds
    # Where a process sees other devices too, all is left to the driver, and said so.
    sees_all = Compared(Program("it", ("allreduce",), ({}, {}), own_devices=True), 1, [ONE], [ONE], [idle, idle])
    assert sameness.at_work([sees_all, Compared(two, 1, [ONE], [ONE], [at_work, at_work])], "row").row.count == 2
    assert "0/4 (plain_devices 4)" in sees_all.finding().note


def outcome(*events: tuple[str, dict[str, object]], status: int = 0) -> Outcome:
    return Outcome("it", 7, status, [Event(name, 7, 1.0, 1.0, members) for name, members in events], ("last words",))


@pytest.mark.parametrize(
    ("outcomes", "digests"),
    [
        ([outcome(("result", {"digest": "a"}), ("finished", {}))], ("a",)),
        ([outcome(("result", {"digest": "a", "right": False}), ("finished", {}))], ()),
        ([outcome(("result", {"digest": "a"}), ("finished", {})), outcome(("failed", {}), status=4)], ()),
        ([outcome(("finished", {}))], ()),
    ],
)
def test_a_run_counts_if_all_its_processes_finished_and_found_it_right(
    outcomes: list[Outcome], digests: tuple[str, ...]
) -> None:
    run = sameness.judged(outcomes)
    assert run.digests == digests
    assert bool(run.failure) == (digests == ())


def memcheck(*lines: str, errors: int) -> str:
    head = ["a program's own words", "========= COMPUTE-SANITIZER"]
    return "\n".join([*head, *(f"========= {line}" for line in lines), f"========= ERROR SUMMARY: {errors} errors", ""])


OVERRUN = (
    "Invalid __global__ write of size 4 bytes",
    "    at access_kernel+0x90",
    "    Address 0x7f10 is out of bounds",
)


def test_findings_are_counted_without_their_addresses() -> None:
    found = sanitizer.parse(memcheck(*OVERRUN, *OVERRUN, "Program hit error 719 on call at 0x7f10", errors=3))
    assert found == Report(
        {"Invalid __global__ write of size 4 bytes": 2, "Program hit error 719 on call at ...": 1}, 3
    )
    assert sanitizer.parse(memcheck(errors=0)) == Report({}, 0)
    with pytest.raises(SuiteError):
        sanitizer.parse("it could not start")


CLEAN, BAD = Report({}, 0), Report({"Invalid read": 1}, 1)
AT_WORK, NOT_AT_WORK = Served(1, 0, {}), Served(0, 1, {"plain_unarmed": 1})


@pytest.mark.parametrize(
    ("planted", "plain", "ours", "served", "same"),
    [
        (False, CLEAN, CLEAN, AT_WORK, True),
        (False, CLEAN, CLEAN, NOT_AT_WORK, False),
        (False, CLEAN, CLEAN, None, False),
        (False, CLEAN, BAD, AT_WORK, False),
        (False, BAD, BAD, AT_WORK, False),
        (True, BAD, BAD, None, True),
        (True, BAD, CLEAN, None, False),
        (True, CLEAN, CLEAN, None, False),
    ],
)
def test_the_sanitizer_finds_the_same_and_what_was_planted(
    planted: bool, plain: Report, ours: Report, served: Served | None, same: bool
) -> None:
    program = sanitizer.Program("it", ("it",), planted=planted)
    row = sanitizer.Compared(program, plain, ours, served).finding().row
    assert row.holds is same
    assert row.value == (0 if plain == ours else 1)


def test_of_nccls_refusal_its_own_words_are_kept() -> None:
    noise = "rank 0 ended with status 4; failed {}; x [0] init.cc:1 NCCL WARN Two of one kind : 0 and 1 | more"
    assert programs.reason(noise) == "Two of one kind : 0 and 1"
    assert programs.reason("it hung") == "it hung"


@pytest.mark.parametrize("measurement", [programs, nccl, zone_api])
def test_there_is_nothing_of_it_to_simulate(tmp_path: Path, measurement: object) -> None:
    said: list[str] = []
    bench = Bench(tmp_path, SimulatedPrograms(), True, said.append)
    assert list(measurement.measure(bench)) == []  # type: ignore[attr-defined]
    assert len(said) == 1
