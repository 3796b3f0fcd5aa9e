"""`second_driver --only programs`: what is compared, what is counted, and what programs are heard to say."""

from __future__ import annotations

import ast
import os
import signal
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

import pytest

from mpsguard.preload.second_claim import ClaimPhase, SecondClaim
from tests.bench.core import batch
from tests.bench.core.batch import Command, End, Task
from tests.bench.core.bench import Bench
from tests.bench.core.finding import Finding
from tests.bench.core.guard import Options
from tests.bench.core.programs import CUDA
from tests.bench.isolation.sameness import Run
from tests.bench.second_driver import samples, unchanged, words
from tests.bench.second_driver.samples import Sample
from tests.bench.second_driver.second import Mode
from tests.bench.second_driver.unchanged import Found, Study, Subject
from tests.bench.second_driver.words import YES, Survival, Words
from tests.bench.simulated import SimulatedPrograms
from tests.harness.leftovers import end_all
from tests.harness.tree import ROOT
from tests.harness.waiting import wait_for

ONE, OTHER, FAILED = Run(("a\nb",)), Run(("a\nc",)), Run(failure="it died")


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.row.name: finding for finding in findings}


def python(text: str, **environment: str) -> Command:
    return Command((sys.executable, "-c", textwrap.dedent(text)), {"PYTHONPATH": str(ROOT), **environment})


def test_programs_run_some_at_once_and_end_in_their_order() -> None:
    tasks = [Task(str(n), (python(f"print({n}); raise SystemExit({n})"),), 30.0) for n in range(5)]
    done: list[int] = []
    looked: set[int] = set()
    ends = batch.run(tasks, 2, lambda number, _pid: looked.add(number), lambda number, _ends: done.append(number))
    assert [(end.status, end.text, end.late) for (end,) in ends] == [(n, f"{n}\n", False) for n in range(5)]
    assert sorted(done) == sorted(looked) == list(range(5))


def test_a_program_that_does_not_end_is_killed_with_its_children() -> None:
    waits, ends = (Command(("sh", "-c", text), {"PATH": os.defpath}) for text in ("sleep 1000 & echo $!; wait", "echo"))
    ((first, second),) = batch.run([Task("it", (waits, ends), 3.0)], 1)
    assert (first.status, first.late) == (-signal.SIGKILL, True)
    assert (second.status, second.text, second.late) == (0, "\n", False)
    command = Path(f"/proc/{int(first.text)}/cmdline")
    # A zombie has none.
    wait_for("the child has ended", lambda: not command.exists() or not command.read_bytes())


CLAIMS = """
    import sys
    from fault_injection.sim.second_driver import SimulatedSecondDriver
    driver = SimulatedSecondDriver("cold", "managed_memory", 1)
    print("said", flush=True)
    while not {seen}:
        pass
    driver._say(4, "graphs")
"""


def test_the_last_word_of_a_program_is_heard_after_its_end(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    heard: dict[int, Words] = {}

    def look(_number: int, pid: int) -> None:
        heard.setdefault(pid, Words(pid)).look()
        if heard[pid].last:
            seen.touch()

    program = python(CLAIMS.format(seen=f"__import__('os').path.exists({str(seen)!r})"))
    ((end,),) = batch.run([Task("it", (program,), 60.0)], 1, look)
    assert (end.status, end.text) == (0, "said\n")
    heard[end.pid].close()
    assert heard[end.pid].last == "graphs"
    assert list(heard[end.pid].seconds) == ["managed_memory", "graphs"]


@pytest.mark.parametrize(
    ("claim", "word"),
    [
        (SecondClaim(ClaimPhase.WAITING, "cold", ""), YES),
        (SecondClaim(ClaimPhase.WAITING, "hot", "arrays"), "arrays"),
        (SecondClaim(ClaimPhase.REFUSED, "hot", "graphs"), "graphs"),
        (SecondClaim(ClaimPhase.REFUSED, "hot", ""), "refused"),
        # It would live through another one.
        (SecondClaim(ClaimPhase.WENT_OVER, "hot", "", times=1), YES),
    ],
)
def test_a_claim_is_one_word(claim: SecondClaim, word: str) -> None:
    assert words.word(claim) == word


def said(*spoken: tuple[str, float]) -> Words:
    made = Words(0)
    for word, at in spoken:
        made.say(word, at)
    return made


def test_what_was_said_for_longest_counts() -> None:
    one = said(("work_in_flight", 1.0), (YES, 1.5), ("graphs", 4.0), ("graphs", 4.1))
    assert (one.longest, one.last) == (YES, "graphs")
    together = Survival.of([one, said(), said((YES, 1.0))])
    assert (together.longest, together.last) == (YES, "graphs")
    nothing = Survival.of([said()])
    assert (nothing.longest, nothing.last) == ("", "")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Time = 1.25 ms", "Time = 11.5 ms"),
        ("took 3 s\nBandwidth:   12.3 GB/s", "took 4 s\nBandwidth: 3.4 GB/s"),
        ("Performance= 3463.24 GFlop/s, Size= 131072000 Ops", "Performance= 1.5e3 GFlop/s, Size= 131072000 Ops"),
        ("copied in 12.5ms", "copied in 9ms"),
        ("at 0x7f3a00000000", "at 0x7f3b00000000"),
        ("Average clocks/block = 1994.5", "Average clocks/block = 2003"),
    ],
)
def test_times_rates_and_addresses_are_taken_out(one: str, other: str) -> None:
    assert samples.comparable(one) == samples.comparable(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Result = PASS", "Result = FAIL"),
        ("sum 1.25", "sum 1.5"),
        ("Test passed in 3 ms", "Test failed in 3 ms"),
        ("iteration = 1, residual = 0x12", "iteration = 1, residual = 0x13"),
        ("generated 5 items", "generated 6 items"),
    ],
)
def test_nothing_else_is_taken_out(one: str, other: str) -> None:
    assert samples.comparable(one) != samples.comparable(other)


def test_the_first_line_that_differs_is_told() -> None:
    assert samples.difference("a\nb", "a\nc\nd") == "'b', 'c'"
    assert samples.difference("a", "a\nb") == "'(no line)', 'b'"


def test_a_quick_run_takes_some_samples_of_each_kind() -> None:
    names = [each.name for each in samples.SAMPLES]
    assert len(set(names)) == len(names) >= 60
    quick = [each for each in samples.SAMPLES if each.quick]
    assert 14 <= len(quick) <= 18
    assert all(each.together for each in quick)


def test_a_sample_is_compiled_in_a_copy_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "from" / "Samples" / "0_Introduction" / "vectorAddDrv"
    place.mkdir(parents=True)
    (tmp_path / "from" / "Common").mkdir()
    for name in ("vectorAddDrv.cpp", "vectorAdd_kernel.cu", "README.md"):
        (place / name).touch()
    into = tmp_path / "into"
    sample = Sample("0_Introduction/vectorAddDrv", loaded="fatbin")
    task = samples.compilation(sample, tmp_path / "from", into)
    assert isinstance(task, Task)
    program, fatbin = (each.words for each in task.commands)
    copy = into / "vectorAddDrv"
    assert str(copy / "vectorAddDrv.cpp") in program
    assert str(copy / "vectorAdd_kernel.cu") not in program
    assert fatbin[-4:] == ("-fatbin", "-o", str(copy / "vectorAdd_kernel64.fatbin"), str(copy / "vectorAdd_kernel.cu"))
    assert samples.compilation(Sample("0_Introduction/clock"), tmp_path / "from", into) == "not in the directory"
    monkeypatch.delenv(samples.DIRECTORY, raising=False)
    assert samples.directory()[0] is None
    monkeypatch.setenv(samples.DIRECTORY, str(tmp_path))
    assert "no Samples and Common" in samples.directory()[1]


def test_a_sample_that_does_not_compile_is_told_of_by_its_first_error() -> None:
    failed = End(7, 1, "x.cu(3): error: no such thing\ny.cu(4): error: nor this\n2 errors detected\n")
    assert samples.why_not_compiled([End(6, 0, ""), failed]) == "x.cu(3): error: no such thing"
    assert samples.why_not_compiled([End(7, 1, "killed\n")]) == "killed"
    assert samples.why_not_compiled([End(6, 0, "a warning")]) == ""


def found(name: str, cold: Run, *, plain: list[Run] | None = None, word: str = YES, last: str = YES) -> Found:
    modes, survival = {Mode.COLD: cold, Mode.HOT: ONE}, {Mode.COLD: Survival(word, last), Mode.HOT: Survival(YES, YES)}
    return Found("It", name, [ONE, ONE] if plain is None else plain, modes, survival)


def test_a_program_with_another_result_does_not_hold_and_one_that_varies_plainly_is_counted() -> None:
    made = [
        found("same", ONE),
        found("other", OTHER),
        found("failing", FAILED),
        found("varying", ONE, plain=[ONE, OTHER]),
        found("waived", FAILED, plain=[FAILED, FAILED]),
        Found("It", "late"),
    ]
    rows = by_name(unchanged.rows(made))
    cold = rows["It, cold second driver with epochs: programs with the results of plain runs"]
    assert (cold.row.value, cold.row.count, cold.row.holds) == (1, 3, False)
    assert cold.note == "other: 'b', 'c'; failing: it died"
    assert rows["It, hot second driver with epochs: programs with the results of plain runs"].row.holds
    left = rows["It: programs not compared, as they fail plainly or never compute the same"]
    assert (left.row.value, left.row.count) == (3, 6)
    assert left.note == "varying: plain runs differ: 'b', 'c'; waived: it died; late: not reached"


def test_what_is_refused_is_a_table_by_reason() -> None:
    made = [
        found("lives", ONE),
        found("one", ONE, word="managed_memory", last="managed_memory"),
        found("two", ONE, word="managed_memory"),
        found("three", ONE, word="arrays"),
        found("silent", ONE, word="", last=""),
        found("failing", FAILED, word="graphs"),
    ]
    rows = by_name(unchanged.survival(Mode.COLD, made))
    lives = rows["cold: programs that would live through a neighbour's fault for the longest part of their time"]
    assert (lives.row.value, lives.row.count) == (1, 5)
    assert lives.note == "managed_memory: 2: one, two; arrays: 1: three; no word: 1: silent"
    managed = rows["cold: refused for the longest part of their time: managed_memory"]
    assert (managed.row.value, managed.row.count, managed.note) == (2, 5, "one, two")
    assert rows["cold: programs that would live through a neighbour's fault at their end"].row.value == 3
    assert not any("graphs" in name for name in rows)


def test_a_run_is_judged_by_its_events_or_by_its_text() -> None:
    of_text = Subject("It", "it", list, 5.0, reports=False)
    assert unchanged.judged(of_text, [End(7, 0, "sum 2\nin 1 ms\n")]) == Run(("sum 2\nin # ms",))
    assert unchanged.judged(of_text, [End(7, 2, "waived\n")]).failure.startswith("status 2; waived")
    assert unchanged.judged(of_text, [End(7, -9, "", late=True)]).failure.startswith("killed after 5 s")
    of_events = Subject("It", "it", list, 5.0)
    head = '"pid": 7, "monotonic": 1.0, "realtime": 1.0'
    text = f'a warning\n{{"event": "result", "digest": "d", {head}}}\n{{"event": "finished", {head}}}\n'
    assert unchanged.judged(of_events, [End(7, 0, text)]) == Run(("d",))
    assert "a warning" in unchanged.judged(of_events, [End(7, 1, text)]).failure


PROGRAM = """
    import os, sys
    from fault_injection.sim.cuda import CudaProcess
    from fault_injection.sim.second_driver import SimulatedSecondDriver
    mode = os.environ.get("MPSGUARD_SECOND_DRIVER")
    cuda = CudaProcess()
    cuda.init()
    cuda.create_context(1)
    driver = SimulatedSecondDriver(mode, "arrays" if mode == "cold" else "", 1) if mode else None
    cuda.launch(0.2)
    cuda.synchronize()
    print("hot" if mode == "hot" and sys.argv[1] == "other" else "as ever", "in", os.getpid(), "ms")
"""


@pytest.mark.slow(seconds=20, reason="starts a guard with two lanes and clients on the simulated stack")
def test_programs_are_compared_at_a_guard_and_heard(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SimulatedPrograms(), True, lambda _text: None, out=tmp_path)
    study = Study(bench)

    def subject(name: str, *, together: bool) -> Subject:
        words = (sys.executable, "-c", textwrap.dedent(PROGRAM), name)
        commands = [(words, {"PYTHONPATH": str(ROOT)})]
        return Subject("It", name, lambda: commands, 60.0, together, reports=False)

    with bench.guard(options=Options(standby=True)) as guard:
        study.compare(guard, [subject("same", together=True), subject("other", together=False)], 4)
    assert not end_all(tmp_path)
    rows = by_name(study.rows())
    cold, hot = (
        rows[f"It, {mode} second driver with epochs: programs with the results of plain runs"] for mode in Mode
    )
    assert (cold.row.value, cold.row.count) == (2, 2)
    assert (hot.row.value, hot.note) == (1, "other: 'as ever in # ms', 'hot in # ms'")
    lives = "programs that would live through a neighbour's fault at their end"
    assert (rows[f"cold: {lives}"].row.value, rows[f"cold: {lives}"].note) == (0, "arrays: 2: same, other")
    assert rows[f"hot: {lives}"].row.value == 2
    assert rows["incidents at the guard meanwhile"].row.holds
    assert "same: cold as plain, mostly arrays" in (tmp_path / "second_driver-programs.txt").read_text()


def test_the_programs_of_cupy_are_those_that_there_are() -> None:
    source = (CUDA / "cupy_programs.py").read_text()
    (table,) = [node.value for node in ast.parse(source).body if isinstance(node, ast.AnnAssign)]
    assert isinstance(table, ast.Dict)
    there = [key.value for key in table.keys if isinstance(key, ast.Constant)]
    assert [each.arguments for each in unchanged.CUPY_PROGRAMS] == [(name,) for name in there]
