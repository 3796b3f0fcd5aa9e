"""What the ways to find the culprit of an SM fault cost while nothing happens."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, sampled
from tests.bench.core.gpu_memory import MIB, gpu_memory
from tests.bench.core.guard import Guard
from tests.bench.core.programs import Work
from tests.bench.core.statistics import ratios
from tests.bench.core.throughput import released_together
from tests.bench.results.schema import Row
from tests.bench.simulated import SimulatedPrograms
from tests.bench.sm.methods import LIGHT_DUMPS, NOTHING, SENTINEL, Method
from tests.bench.triage.incidents import wait_until

BAR: Final = 0.999
CLIENTS: Final = 4
ROUNDS: Final = 6
SECONDS: Final = 1.5
STEPS: Final = 4000
_STAND: Final = 15.0


def measure(bench: Bench) -> Iterator[Finding]:
    """Rates of four clients: with nothing, with a sentinel beside them, and with dumps switched on, in turn."""
    simulated = isinstance(bench.programs, SimulatedPrograms)
    ways = [NOTHING, *([] if simulated else [SENTINEL]), LIGHT_DUMPS]
    rates: dict[str, list[float]] = {way.name: [] for way in ways}
    memory: list[float] = []
    cores = Path(tempfile.mkdtemp(prefix="gpu-suite-cores-"))
    try:
        for number in range(bench.runs(ROUNDS, 1)):
            for way in ways if number % 2 == 0 else reversed(ways):
                with bench.guard(options=way.options(cores)) as guard, way.opted_in(cores):
                    bench.warm_up(guard)
                    rates[way.name].append(_rate(bench, guard, way, memory))
    finally:
        shutil.rmtree(cores)
    for way in ways[1:]:
        each = ratios(rates[way.name], rates[NOTHING.name])
        yield sampled(
            f"throughput of four clients, {way.name} over nothing (paired ratios)",
            each,
            unit="",
            bar=f"median >= {BAR}",
            holds=median(each) >= BAR,
        )
    if memory:
        value = median(memory)
        row = Row(
            name="GPU memory of a sentinel", value=value, unit="MiB", bar="reported", holds=True, runs=len(memory)
        )
        yield Finding(row, samples=tuple(memory))


def _rate(bench: Bench, guard: Guard, way: Method, memory: list[float]) -> float:
    with Clients() as clients:
        started = bench.workers(clients, guard, CLIENTS, Work(seconds=SECONDS, work=STEPS, controlled=True))
        if way.sentinel:
            # The memory of all processes: no other one begins or ends meanwhile.
            with gpu_memory(bench, guard) as gpu:
                before = gpu.used()
                if not wait_until(guard.has_sentinel, time.monotonic() + _STAND):
                    raise SuiteError(f"no sentinel on the lane within {_STAND:g} s")
                memory.append((gpu.used() - before) / MIB)
        return released_together(started)


MEASUREMENT: Final = Measurement("cost", "throughput and memory with a sentinel, and with dumps switched on", measure)
