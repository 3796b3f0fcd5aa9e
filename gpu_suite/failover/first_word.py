"""From an SM fault to the driver's first word of it, by who else has channels on the GPU.

The firmware looks at channels one after the other, in the order of their numbers, until it comes to the one that
faulted. A number that was given back is taken again, the lowest first: so what counts is who was there before.
"""

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpu_suite.core.bench import Bench, Measurement
from gpu_suite.core.client import Client, Clients
from gpu_suite.core.errors import SuiteError
from gpu_suite.core.finding import Finding, sampled
from gpu_suite.core.programs import Work
from gpu_suite.core.stock import StockDaemon
from gpu_suite.failover.latency import SM
from gpu_suite.failover.rounds import injected, start_culprit
from gpu_suite.triage.kernel_log import KernelLog

OTHERS: Final = 4
ROUNDS, QUICK_ROUNDS = 2, 1
"""Of all SM faults, for each case."""
_XID: Final = 13
_SPOKEN: Final = 3.0
"""Seconds in which the driver must say something."""
_LOOK: Final = 0.0001
_ONE_CONNECTION: Final = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


@dataclass(frozen=True)
class _Case:
    """Who has channels beside the culprit: clients of the same lane, idle."""

    name: str
    before: int = 0
    behind: int = 0
    variables: Mapping[str, str] | None = None


CASES: Final = (
    _Case("no other client"),
    _Case(f"{OTHERS} clients that came before the culprit", before=OTHERS),
    _Case(f"{OTHERS} that came behind it", behind=OTHERS),
    _Case(f"{OTHERS} that came before, CUDA_DEVICE_MAX_CONNECTIONS=1", before=OTHERS, variables=_ONE_CONNECTION),
)


def measure(bench: Bench) -> Iterator[Finding]:
    """Each case on stock MPS: nothing of ours plays a part."""
    if bench.programs.simulated:
        raise SuiteError("there is no driver to say anything")
    found: dict[str, list[float]] = {case.name: [] for case in CASES}
    with bench.stock() as stock, KernelLog() as log:
        if not log.readable:
            raise SuiteError("the kernel log cannot be read")
        bench.warm_up(stock)
        for _, fault, case in itertools.product(range(bench.runs(ROUNDS, QUICK_ROUNDS)), SM, CASES):
            found[case.name].append(_trial(bench, stock, log, case, fault))
            bench.say(f"  {case.name}, {fault}: {found[case.name][-1]:.1f} ms")
    for name, samples in found.items():
        title = f"SM fault to the driver's first word of it, {name}"
        yield sampled(title, samples, unit="ms", bar="reported", holds=True)


def _trial(bench: Bench, stock: StockDaemon, log: KernelLog, case: _Case, fault: str) -> float:
    with Clients() as clients:
        _idle(bench, stock, clients, case.before, case.variables)
        culprit = start_culprit(bench, stock, clients, fault, 0.05, go=False)
        _idle(bench, stock, clients, case.behind, case.variables)
        log.lines()
        culprit.go()
        at = injected(culprit) / 1e9
        return (_first_word(log) - at) * 1e3


def _idle(bench: Bench, stock: StockDaemon, clients: Clients, count: int, variables: Mapping[str, str] | None) -> None:
    argv = bench.programs.worker(Work(seconds=60, controlled=True))
    started: list[Client] = [
        clients.start(argv, stock.pipe_directory, f"idle-{number}", variables) for number in range(count)
    ]
    for client in started:
        client.wait_for("first_kernel")


def _first_word(log: KernelLog) -> float:
    due = time.monotonic() + _SPOKEN
    while True:
        # When it is read, not when the log says that it was written: that clock is another one.
        if any(line.number == _XID for line in log.lines()):
            return time.monotonic()
        if time.monotonic() > due:
            raise SuiteError(f"no Xid {_XID} within {_SPOKEN:g} s")
        time.sleep(_LOOK)


MEASUREMENT: Final = Measurement("first_word", "what the driver's first word of an SM fault waits for", measure)
