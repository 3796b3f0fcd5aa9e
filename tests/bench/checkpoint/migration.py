"""A token server moves to another GPU under load: its pause, and whether a token is lost or made twice.

With one GPU nothing is measured, unless REHEARSAL is set in the environment: then both programs are on that GPU, and
all rows say that they are a rehearsal.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from shutil import rmtree
from statistics import median
from typing import Final

from tests.bench.checkpoint.laps import described
from tests.bench.checkpoint.place import GIB, start, store_for
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.events import Event
from tests.bench.core.finding import Finding, none_of, not_measured, sampled
from tests.bench.core.gpus import uuids
from tests.bench.core.guard import Options

PAUSE: Final = 100.0
"""Bar: ms from the last token on the old GPU to the first one on the new GPU."""
REHEARSAL: Final = "MPSGUARD_MIGRATION_REHEARSAL"
_MS: Final = 1e3
_RUN: Final = 90.0
"""Seconds: with less left, no run begins. Each takes about half a minute, most of it the programs' start."""


def measure(bench: Bench) -> Iterator[Finding]:
    """20 GB, five runs and more as time allows; 1 GB and two runs, if quick."""
    size = 24 << 20 if bench.programs.simulated else GIB if bench.quick else 20 * 10**9
    cards = [] if bench.programs.simulated else uuids()
    rehearsal = bench.programs.simulated or (len(cards) < 2 and REHEARSAL in os.environ)
    if len(cards) < 2 and not rehearsal:
        yield not_measured("migration", f"one GPU; {REHEARSAL}=1 rehearses it there")
        return
    what = "migration, a REHEARSAL on one GPU" if rehearsal else "migration"
    options = Options(gpus=tuple(cards[:2]))
    store, size = store_for(bench, "migration", 3, size)
    pauses: list[float] = []
    told: list[Event] = []
    sent: list[Event] = []
    lost = tokens = 0
    failed: list[str] = []
    try:
        with bench.guard(options=options) as guard:
            for number in range(bench.runs(8, 2)):
                if pauses and bench.left < _RUN:
                    break
                with ExitStack() as stack:
                    clients = stack.enter_context(Clients())
                    words = ["--store", store / "images", "--size", size, "--number", number]
                    source = start(bench, clients, guard, "migrator", [*words, "--side", "source"])
                    source.wait_for("serving", 120.0)
                    other = {} if rehearsal else {"CUDA_VISIBLE_DEVICES": cards[1]}
                    receiver = start(bench, clients, guard, "migrator", [*words, "--side", "receiver"], more=other)
                    taken = receiver.wait_for("taken", 120.0)
                    ended = source.wait_for("moved", 30.0)
                    if not (receiver.finish(60.0).ok and source.finish(60.0).ok):
                        failed.append(f"run {number}: a program failed")
                tokens += round(ended.number("token"))
                lost += abs(round(taken.number("token")) - round(ended.number("token")) - 1)
                lost += round(taken.number("wrong"))
                pauses.append((taken.number("at") - ended.number("at")) * _MS)
                told.append(taken)
                sent.append(ended)
                rounds = taken.members["rounds"]
                assert isinstance(rounds, list)
                bench.say(
                    f"  run {number}: pause {pauses[-1]:.1f} ms; {described([taken])}; a token "
                    f"{ended.number('each') * _MS:.2f} ms, the last cut {ended.number('cut') * _MS:.2f} ms; rounds "
                    f"{' '.join(f'{each:.2f}' for each in rounds)} s"
                )
    finally:
        rmtree(store, ignore_errors=True)
        if pauses:
            yield none_of(f"{what}: tokens lost, doubled or wrong", lost, tokens, "tokens", note="; ".join(failed))
            yield sampled(
                f"{what} of {size / 1e9:.3g} GB under load: pause",
                pauses,
                unit="ms",
                bar=f"max <= {PAUSE:g}",
                holds=max(pauses) <= PAUSE and not failed,
                note=f"a token takes {median(each.number('each') for each in sent) * _MS:.2f} ms; {described(told)}",
            )


MEASUREMENT: Final = Measurement("migration", "a session moves to another GPU under load", measure)
