"""What a measurement is given: daemons and clients on demand, all under one private directory."""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.bench.core.client import Client, Clients
from tests.bench.core.control_ui import ControlUi
from tests.bench.core.finding import Finding
from tests.bench.core.guard import Guard, Options, guard
from tests.bench.core.programs import Programs, Work
from tests.bench.core.stock import StockDaemon, stock_daemon


class Target(Protocol):
    """A pipe directory that clients can use: a stock daemon's or the guard's."""

    @property
    def name(self) -> str:
        """`stock` or `guard`."""

    @property
    def pipe_directory(self) -> Path:
        """What a user puts into CUDA_MPS_PIPE_DIRECTORY."""

    @property
    def ui(self) -> ControlUi:
        """The vendor's command line on it."""


@dataclass
class Bench:
    """One run's means. `quick` asks for the fewest runs that still show the thing; `say` prints progress."""

    root: Path
    programs: Programs
    quick: bool
    say: Callable[[str], None]
    ends_at: float = math.inf
    """When the run is broken off, in seconds of CLOCK_MONOTONIC."""
    out: Path | None = None
    """Where a measurement may leave a file of its own beside the result; None if nothing is to be kept."""
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def left(self) -> float:
        """Seconds until the run is broken off."""
        return max(0.0, self.ends_at - time.monotonic())

    def runs(self, full: int, quick: int) -> int:
        """How often to repeat."""
        return quick if self.quick else full

    def stock(self) -> AbstractContextManager[StockDaemon]:
        """A fresh stock daemon for a `with` block."""
        return stock_daemon(self.programs.control, self._directory())

    def guard(self, *, held_sockets: bool = False, options: Options | None = None) -> AbstractContextManager[Guard]:
        """A fresh guard with a fresh lane for a `with` block."""
        return guard(self.programs.control, self._directory(), held_sockets=held_sockets, options=options or Options())

    def workers(
        self,
        clients: Clients,
        target: Target,
        count: int,
        work: Work,
        variables: Mapping[str, str] | None = None,
    ) -> list[Client]:
        """Start workers one after the other, each after the last has its context: their order is the same each run.

        With further environment variables if there are any.
        """
        started = []
        for index in range(count):
            label = f"{target.name}-{index}"
            client = clients.start(self.programs.worker(work), target.pipe_directory, label, variables)
            client.wait_for("first_kernel")
            started.append(client)
        return started

    def warm_up(self, target: Target) -> None:
        """Run one short client, so that the MPS server exists and has its context."""
        with Clients() as clients:
            self.workers(clients, target, 1, Work(seconds=0))[0].finish()

    def _directory(self) -> Path:
        # Socket paths are limited to 107 bytes (unix(7)): short names.
        return self.root / str(next(self._numbers))


@dataclass(frozen=True)
class Measurement:
    """One measurement of a suite: a name for --only, what it shows, and the function that makes it."""

    name: str
    what: str
    run: Callable[[Bench], Iterable[Finding]]
