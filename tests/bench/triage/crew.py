"""The clients of one cell: three innocents and the one that misbehaves."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fault_injection.catalog import Fault
from tests.bench.core.bench import Bench, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import FAILED, Outcome
from tests.bench.core.programs import Work
from tests.bench.triage.memory_group import spawning_into

INNOCENTS: Final = 3
AT: Final = 0.05
"""Seconds of ordinary work before the fault."""
_LONG: Final = 120.0
"""Seconds of work: the suite ends the clients long before."""
_START: Final = 30.0
_RECOVERY: Final = 10.0
"""Seconds in which an MPS server must take clients again after a fault."""
_END: Final = 10.0


@dataclass(frozen=True)
class Crew:
    """Running clients, each with its first kernel done; `culprit` is None where the suite itself does it."""

    innocents: Sequence[Client]
    culprit: Client | None

    @property
    def everybody(self) -> list[Client]:
        """All of them."""
        return [*self.innocents, *([self.culprit] if self.culprit else [])]

    def go(self) -> None:
        """Release all of them."""
        for client in self.everybody:
            client.go()


def assemble(bench: Bench, target: Target, clients: Clients, fault: Fault, group: Path | None) -> Crew:
    """Start them side by side, the culprit in the memory cgroup ``group`` if there is one.

    They are started again as long as the server still recovers from the fault before.

    A client that comes too early is refused with 807, or dies with the old clients' error before its first kernel.
    """
    limit = time.monotonic() + _RECOVERY
    while True:
        started = [_start(bench, target, clients, None) for _ in range(INNOCENTS)]
        with spawning_into(group) if group is not None else nullcontext():
            culprit = _start(bench, target, clients, fault) if fault.by_client else None
        crew = Crew(started, culprit)
        try:
            for client in crew.everybody:
                client.wait_for("first_kernel", _START)
        except SuiteError:
            if time.monotonic() > limit or not any(client.seen(FAILED) for client in crew.everybody):
                raise
            for client in crew.everybody:
                client.end(grace=1.0)
            time.sleep(0.1)  # a new try, not a wait: the next one asks the server again
            continue
        return crew


def outcome(client: Client, grace: float = _END) -> tuple[Outcome, bool]:
    """Ask it to end, and whether it did so by itself within `grace` seconds."""
    client.stop()
    try:
        return client.finish(grace), True
    except SuiteError:
        return client.finish(_END), False


def _start(bench: Bench, target: Target, clients: Clients, fault: Fault | None) -> Client:
    name = fault.name if fault else None
    work = Work(seconds=_LONG, controlled=True, fault=name, fault_at=AT)
    return clients.start(bench.programs.worker(work), target.pipe_directory, f"{target.name}-{name or 'innocent'}")
