"""What a standby costs while nothing happens: throughput of others, and its own GPU memory."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, sampled
from tests.bench.core.gpu_memory import MIB, gpu_memory
from tests.bench.core.guard import Options
from tests.bench.core.programs import Work
from tests.bench.core.statistics import alternating, ratios
from tests.bench.core.throughput import throughput
from tests.bench.failover.program import Service

BAR: Final = 0.995
MEMORY_BAR: Final = 1024
"""MiB of an idle standby, beside what it shares."""
CLIENTS: Final = 4
PAIRS, QUICK_PAIRS = 8, 2
SECONDS: Final = 3.0
STEPS: Final = 4000
MODEL: Final = "gpt2"


def measure(bench: Bench) -> Iterator[Finding]:
    """Four clients under a guard with a vault and an idle service with its standby, against plain MPS; in pairs."""
    if bench.programs.simulated:
        raise SuiteError("there is no GPU memory to be measured")
    ours: list[float] = []
    theirs: list[float] = []
    with ExitStack() as stack:
        guard = stack.enter_context(bench.guard(options=Options(standby=True)))
        stock = stack.enter_context(bench.stock())
        directory = bench.root / "steady"
        directory.mkdir()
        service = Service(guard, directory, "steady", model=MODEL, mode="vault", device="cuda")
        stack.callback(service.program.close)
        service.program.wait_for("first_operation")
        throughput(bench, guard, CLIENTS, _work(0.5))
        gpu = stack.enter_context(gpu_memory(bench, guard))
        before = gpu.used()
        service.wait_until_guarded()
        # What is under way when it says that it is ready has its end.
        time.sleep(1.0)
        memory = (gpu.used() - before) / MIB
        throughput(bench, stock, CLIENTS, _work(0.5))
        for order in alternating(bench.runs(PAIRS, QUICK_PAIRS)):
            for through_guard in order:
                target = guard if through_guard else stock
                (ours if through_guard else theirs).append(throughput(bench, target, CLIENTS, _work(SECONDS)))
    each = ratios(ours, theirs)
    yield sampled(
        "throughput with guard, vault and an idle standby over plain MPS (paired ratios)",
        each,
        unit="",
        bar=f"median >= {BAR}",
        holds=median(each) >= BAR,
    )
    yield sampled(
        f"GPU memory of an idle standby ({MODEL}), its server and context included",
        [memory],
        unit="MiB",
        bar=f"<= {MEMORY_BAR} MiB",
        holds=0 < memory <= MEMORY_BAR,
    )


def _work(seconds: float) -> Work:
    return Work(seconds=seconds, work=STEPS, controlled=True)


MEASUREMENT: Final = Measurement("steady", "what a standby costs while nothing happens", measure)
