"""From a request to the first answer: warm workers with memory that is there, a plain warm process, cold ones.

In this order, each by the time that the parts before have left: what the bars are for comes first, and GPU memory is
compared while no other process has any.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from mpsguard.images.pool.errors import PoolError
from tests.bench.checkpoint.place import finished, store_for
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import PATIENCE, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, none_of, not_measured, sampled
from tests.bench.core.guard import Guard
from tests.bench.start.laps import shortage
from tests.bench.start.ours import ours, spread
from tests.bench.start.place import MIB, Made, models, patience, program, same, spare
from tests.bench.start.plan import GPT2_LARGE, MIXTURE, MOBILENET, SEVEN, Plan

_PLAIN: Final = 200.0
_PLAIN_SHARE: Final = 0.5
"""Of the time that is left: the rest is for the cold processes."""
_ROUND: Final = 20.0
"""Seconds for the round that the plain process is in when its time is over."""


def measure(bench: Bench, plan: Plan) -> Iterator[Finding]:
    """20 of each; 1, if quick."""
    kind = plan.small if bench.programs.simulated else plan.kind
    room = 64 * MIB if bench.programs.simulated else 2 * plan.size
    directory, _ = store_for(bench, kind, 1, room)
    with bench.guard() as guard, Clients() as clients, models(bench, clients, guard, directory, kind=kind) as made:
        words: list[object] = ["--kind", kind, "--file", made.file(made.names[0])]
        parts = (
            ("ours", ours(bench, clients, guard, made, kind=kind, plan=plan)),
            ("a plain warm process", _plain(bench, clients, guard, words=words, plan=plan)),
            ("cold processes", _cold(bench, clients, guard, made=made, words=words, plan=plan)),
        )
        for name, findings in parts:
            yield from _part(bench, f"{plan.kind}, {name}", findings)


def _part(bench: Bench, name: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """A part's rows; one that fails, or has no time, is a row that does not hold, and the next one is measured."""
    began = time.monotonic()
    try:
        if why := shortage(spare(bench), 0.0, "it"):
            raise SuiteError(why)
        yield from findings
    except (SuiteError, PoolError, OSError) as error:
        yield not_measured(name, str(error))
    bench.say(f"{name}: {time.monotonic() - began:.1f} s")


def _plain(bench: Bench, clients: Clients, guard: Guard, *, words: list[object], plan: Plan) -> Iterator[Finding]:
    rounds, seconds = bench.runs(20, 1), min(_PLAIN, _PLAIN_SHARE * spare(bench))
    warm = program(bench, clients, guard, "plain", [*words, "--rounds", rounds + 1, "--seconds", seconds])
    what = "a plain warm process"
    yield from finished(f"{plan.kind}, {what}", warm, seconds + min(_ROUND, 0.5 * (spare(bench) - seconds)))
    # The first round is a cold process's.
    samples = [each.number("seconds") for each in warm.all_seen("answered")[1:]]
    yield from _compared(what, samples, rounds, plan, "its time was over")


def _cold(
    bench: Bench, clients: Clients, guard: Guard, *, made: Made, words: list[object], plan: Plan
) -> Iterator[Finding]:
    at_once, wanted = bench.runs(plan.cold_at_once, 1), bench.runs(20, 1)
    what = f"a cold process, {at_once} at a time"
    samples: list[float] = []
    ends, wrong, took, why = time.monotonic() + plan.cold, 0, 0.0, ""

    def left() -> float:
        return min(spare(bench), ends - time.monotonic())

    try:
        while len(samples) < wanted and not (why := shortage(left(), took, f"another batch of {at_once}") or ""):
            batch = time.monotonic()
            processes = []
            for _ in range(at_once):
                began = time.monotonic()
                processes.append((began, program(bench, clients, guard, "plain", words)))
            for began, process in processes:
                answered = process.wait_for("answered", patience(bench, PATIENCE))
                samples.append(answered.monotonic - began)
                wrong += not same(_numbers(answered.members["answer"]), made.answers[made.names[0]])
                process.finish(patience(bench, PATIENCE))
            took = time.monotonic() - batch
    except (SuiteError, OSError) as error:
        why = str(error)
    yield from _compared(what, samples, wanted, plan, why)
    if samples:
        yield none_of(f"{plan.kind}: wrong answers of cold processes", wrong, len(samples), "answers")


def _compared(what: str, seconds: list[float], wanted: int, plan: Plan, why: str) -> Iterator[Finding]:
    if not seconds:
        yield not_measured(f"{plan.kind}, {what}", why or "it gave no answer")
        return
    samples = [1e3 * each for each in seconds]
    yield sampled(
        f"{plan.kind}, {what}: request to first answer",
        samples,
        unit="ms",
        bar="none: for comparison",
        holds=True,
        note=spread(samples) + (f"; {len(samples)} of {wanted}: {why}" if len(samples) < wanted else ""),
    )


def _numbers(value: object) -> list[float]:
    return [float(each) for each in value] if isinstance(value, list) else []


def _of(plan: Plan) -> Callable[[Bench], Iterator[Finding]]:
    return partial(measure, plan=plan)


MEASUREMENTS: Final = (
    Measurement("mobilenet", "starts of MobileNetV2: ours, plain warm, cold", _of(MOBILENET)),
    Measurement("gpt2-large", "starts of GPT-2-large: ours, plain warm, cold", _of(GPT2_LARGE)),
    Measurement("7b", "starts of a 7B shape in fp16: ours, plain warm, cold", _of(SEVEN)),
    Measurement("mixture", "starts of a mixture of experts: ours, plain warm, cold", _of(MIXTURE)),
)
