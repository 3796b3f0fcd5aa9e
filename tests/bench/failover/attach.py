"""Attaching to 64 GiB in the vault against loading it again, and whether all is there after every kind of trouble."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from statistics import median
from typing import Any, Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, none_of, sampled
from tests.bench.core.guard import Guard, Options
from tests.bench.core.programs import Work
from tests.bench.failover.latency import MMU, SM
from tests.bench.failover.program import environment

GIB: Final = 64
FEW, MANY = 1, 512
"""Handles."""
FEW_BAR, MANY_BAR = 5.0, 30.0
"""Milliseconds."""
ATTEMPTS, QUICK_ATTEMPTS = 10, 3
FAULTS: Final = (*SM, "trap", *MMU, "atomic", "jump", "hostptr", "copy")


class Attacher:
    """One `attach_client`; asked a line, answers a line."""

    def __init__(self, guard: Guard, role: str, gib: int, *, aside: bool = False) -> None:
        """``aside``: on the lane where standbys wait, so that a fault of the other one leaves it alone."""
        directory = guard.pipe_directory / "standby" if aside else guard.pipe_directory
        argv = [sys.executable, "-m", "tests.bench.failover.attach_client", role, "attach", str(gib)]
        self._process = subprocess.Popen(
            argv,
            env=environment(guard) | {"CUDA_MPS_PIPE_DIRECTORY": str(directory)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def ask(self, *words: object) -> dict[str, Any]:
        """The answer; SuiteError if the process ends instead."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Kill it: what it made must outlive that."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SuiteError(f"the attaching process ended: {self._process.communicate()[1][-400:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def measure(bench: Bench) -> Iterator[Finding]:
    """One process makes the memory and is killed; others attach, with faults and the guard's own death in between."""
    if bench.programs.simulated:
        raise SuiteError("attaching is to a GPU's memory")
    with ExitStack() as stack:
        guard = stack.enter_context(bench.guard(options=Options(standby=True)))
        maker = Attacher(guard, "writer", GIB)
        stack.callback(maker.close)
        bench.say(f"  {maker.ask('make', 'few', FEW)}")
        yield from _times(bench, guard, "few", FEW, FEW_BAR)
        yield from _survives(bench, guard, maker)
        maker = Attacher(guard, "writer", GIB)
        stack.callback(maker.close)
        # Two of them do not fit on every card side by side.
        maker.ask("release", "few")
        bench.say(f"  {maker.ask('make', 'many', MANY)}")
        yield from _times(bench, guard, "many", MANY, MANY_BAR)


def _times(bench: Bench, guard: Guard, name: str, handles: int, bar: float) -> Iterator[Finding]:
    reader = Attacher(guard, "reader", GIB)
    try:
        attached = [reader.ask("attach", name) for _ in range(bench.runs(ATTEMPTS, QUICK_ATTEMPTS))]
        reloaded = [reader.ask("reload")["seconds"] * 1e3 for _ in range(3)]
    finally:
        reader.close()
    mapped = [answer["mapped"] * 1e3 for answer in attached]
    yield sampled(
        f"{GIB} GiB attached, {handles} handle{'s' if handles > 1 else ''}",
        mapped,
        unit="ms",
        bar=f"median <= {bar:g} ms",
        holds=median(mapped) <= bar,
        note=f"with the first read: {median(answer['used'] for answer in attached) * 1e3:.1f} ms",
    )
    yield sampled(
        f"{GIB} GiB loaded from pinned memory, beside {handles} handle{'s' if handles > 1 else ''}",
        reloaded,
        unit="ms",
        bar="reported beside it",
        holds=True,
    )


def _survives(bench: Bench, guard: Guard, maker: Attacher) -> Iterator[Finding]:
    """The contents after each fault kind, after the maker's SIGKILL, after the guard's, and after its restart."""
    wrong, checks = 0, 0
    notes = []

    def check(after: str, reader: Attacher) -> None:
        nonlocal wrong, checks
        found = reader.ask("check", "few")["wrong"]
        checks += 1
        wrong += bool(found)
        if found:
            notes.append(f"{found} words after {after}")

    maker.close()
    with closing(Attacher(guard, "reader", GIB, aside=True)) as reader:
        check("the maker's SIGKILL", reader)
        for name in FAULTS[: bench.runs(len(FAULTS), 2)]:
            work = Work(seconds=5, controlled=True, fault=name, fault_at=0.05)
            with Clients() as clients:
                culprit = bench.workers(clients, guard, 1, work)[0]
                culprit.go()
                culprit.finish()
            # Attached anew each time: what is looked at is what the vault gives.
            check(name, reader)
    guard.kill()
    guard.start()
    with closing(Attacher(guard, "reader", GIB)) as reader:
        check("the guard's SIGKILL and restart", reader)
    guard.stop()
    guard.start()
    with closing(Attacher(guard, "reader", GIB)) as reader:
        check("the guard's orderly restart", reader)
    yield none_of(
        f"checks of {GIB} GiB, word for word, that found a wrong one ({len(FAULTS)} kinds of faults, SIGKILL of maker "
        "and guard, restarts)",
        wrong,
        checks,
        "checks",
        note="; ".join(notes),
    )


MEASUREMENT: Final = Measurement(
    "attach", "64 GiB attached, against loading it, and checked after every trouble", measure
)
