"""From an SM fault to the driver's first word of it, by which other clients have channels on the GPU.

It grows with the channels that have lower numbers than the culprit's, as if the firmware looked at one after the other
until it comes to the one that faulted. A number that was given back is taken again, the lowest first: so what counts is
which clients were there before. Until then the GPU stands still for the clients of every server.
"""

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, sampled
from tests.bench.core.programs import Work
from tests.bench.core.stock import StockDaemon
from tests.bench.failover.latency import SM
from tests.bench.failover.rounds import injected, start_culprit
from tests.bench.triage.incidents import wait_until
from tests.bench.triage.kernel_log import KernelLog

OTHERS: Final = 4
ROUNDS, QUICK_ROUNDS = 2, 1
"""Of all SM faults, for each case."""
_XID: Final = 13
_SPOKEN: Final = 3.0
"""Seconds in which the driver must say something."""
_LOOK: Final = 0.0001
_AFTER: Final = 0.1
"""Seconds of ordinary work of the witness behind the word."""
_WORK: Final = Work(seconds=60, controlled=True)
_ONE_CONNECTION: Final = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


@dataclass(frozen=True)
class _Case:
    """The clients with channels beside the culprit's: idle clients of its server, or of another one."""

    name: str
    before: int = 0
    behind: int = 0
    elsewhere: int = 0
    """Of another server, before it."""
    variables: Mapping[str, str] | None = None
    witness: bool = False
    """Whether a client of another server is at work meanwhile."""


@dataclass(frozen=True)
class _Seen:
    """Milliseconds."""

    word: float
    """From the fault to the driver's first word."""
    standstill: float | None
    """From that word to the next kernel of the witness."""


CASES: Final = (
    _Case("no other client"),
    _Case(f"{OTHERS} clients that came before the culprit", before=OTHERS),
    _Case(f"{OTHERS} that came behind it", behind=OTHERS),
    _Case(f"{OTHERS} that came before, CUDA_DEVICE_MAX_CONNECTIONS=1", before=OTHERS, variables=_ONE_CONNECTION),
    # Last: that server stays, and has channels.
    _Case(f"{OTHERS} of another server that came before", elsewhere=OTHERS),
    _Case("a client of another server at work", witness=True),
)


def measure(bench: Bench) -> Iterator[Finding]:
    """Each case on stock MPS: nothing of ours plays a part."""
    if bench.programs.simulated:
        raise SuiteError("there is no driver to say anything")
    with bench.stock() as stock, bench.stock() as other, KernelLog() as log:
        if not log.readable:
            raise SuiteError("the kernel log cannot be read")
        bench.warm_up(stock)
        for case in CASES:
            seen = []
            for _, fault in itertools.product(range(bench.runs(ROUNDS, QUICK_ROUNDS)), SM):
                seen.append(_trial(bench, (stock, other), log, case, fault))
                bench.say(f"  {case.name}, {fault}: {seen[-1].word:.1f} ms")
            title = f"SM fault to the driver's first word of it, {case.name}"
            yield sampled(title, [each.word for each in seen], unit="ms", bar="reported", holds=True)
            behind = [each.standstill for each in seen if each.standstill is not None]
            if behind:
                title = "the driver's first word to the next kernel of a client of another server"
                yield sampled(title, behind, unit="ms", bar="> 0 in every run", holds=min(behind) > 0)


def _trial(bench: Bench, servers: tuple[StockDaemon, StockDaemon], log: KernelLog, case: _Case, fault: str) -> _Seen:
    stock, other = servers
    with Clients() as clients:
        bench.workers(clients, stock, case.before, _WORK, case.variables)
        bench.workers(clients, other, case.elsewhere, _WORK, case.variables)
        culprit = start_culprit(bench, stock, clients, fault, 0.05)
        bench.workers(clients, stock, case.behind, _WORK, case.variables)
        witness = bench.workers(clients, other, 1 if case.witness else 0, _WORK)
        for client in witness:
            client.go()
            client.wait_for("begin")
        log.lines()
        culprit.go()
        at = injected(culprit) / 1e9
        word = _first_word(log)
        return _Seen((word - at) * 1e3, (_went_on(witness[0], at) - word) * 1e3 if witness else None)


def _went_on(witness: Client, fault: float) -> float:
    """When the witness's first kernel behind the standstill came back; SuiteError if it did not stand still then."""
    time.sleep(_AFTER)
    witness.stop()
    outcome = witness.finish()
    last = outcome.find("finished")
    if last is None:
        raise SuiteError(outcome.describe())
    begun = last.number("max_gap_began")
    end = begun + last.number("max_gap")
    # A kernel that was under way may have come back behind the fault's launch.
    if not (begun - _AFTER / 10 < fault < end):
        raise SuiteError(f"the witness stood still from {begun:.6f} to {end:.6f}, the fault was at {fault:.6f}")
    return end


def _first_word(log: KernelLog) -> float:
    def said() -> bool:
        return any(line.number == _XID for line in log.lines())

    if not wait_until(said, time.monotonic() + _SPOKEN, every=_LOOK):
        raise SuiteError(f"no Xid {_XID} within {_SPOKEN:g} s")
    # When it was read, not when the log says that it was written: that clock is another one.
    return time.monotonic()


MEASUREMENT: Final = Measurement("first_word", "what the driver's first word of an SM fault waits for", measure)
