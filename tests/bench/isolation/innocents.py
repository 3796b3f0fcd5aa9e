"""The clients that did nothing: three kernel loops that go on for as long as they live."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.bench.core.bench import Bench, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import DIED, FAILED
from tests.bench.core.programs import Work

COUNT: Final = 3
_WORK: Final = Work(seconds=600.0, controlled=True)
"""Longer than any measurement: they end when they are asked to."""
_START: Final = 30.0
_RECOVERY: Final = 15.0
"""Seconds in which an MPS server must take clients again after a fault."""
_AGAIN: Final = 0.1
_SECOND: Final = 5.0
"""Seconds within which a client that works reports one second of work."""


class Report(NamedTuple):
    """A second of work as a client reports it: when that was over, how long it was, and the longest iteration in it."""

    at: float
    length: float
    longest: float


@dataclass
class Innocents:
    """One crew at a time on one target; a new one comes when the old one has suffered."""

    bench: Bench
    target: Target
    clients: Clients
    crew: list[Client] = field(default_factory=list)
    late: int = 0
    """How many died unobserved."""
    _last_seen: int = 0

    def ready(self, *, fresh: bool = False) -> None:
        """See that three are at work: those of before if all of them live and no ``fresh`` ones are wanted.

        A client that comes while the server recovers is refused, or dies before its first kernel: it is tried again.
        """
        self.count_late()
        if self._last_seen == COUNT and not fresh:
            return
        limit = time.monotonic() + _RECOVERY
        while True:
            self.dismiss()
            argv = self.bench.programs.worker(_WORK)
            name = f"{self.target.name}-innocent"
            self.crew = [self.clients.start(argv, self.target.pipe_directory, name) for _ in range(COUNT)]
            try:
                for client in self.crew:
                    client.wait_for("first_kernel", _START)
                break
            except SuiteError:
                if time.monotonic() > limit or not any(client.seen(FAILED) for client in self.crew):
                    raise
            time.sleep(_AGAIN)  # a new try, not a wait: the next one asks the server again
        for client in self.crew:
            client.go()
        for client in self.crew:
            client.wait_for("begin", _START)
        self._last_seen = COUNT

    def count_late(self) -> None:
        """Count those that have died since they were last watched."""
        alive = self.alive()
        self.late += max(0, self._last_seen - alive)
        self._last_seen = alive

    def dismiss(self) -> None:
        """Have them end."""
        for client in self.crew:
            client.stop()
        for client in self.crew:
            client.end()
        self.crew, self._last_seen = [], 0

    def alive(self) -> int:
        """How many live and work, as far as they have said."""
        return sum(not client.seen(DIED) and client.ended_with() is None for client in self.crew)

    def watch(self, until: float) -> int:
        """How many are alive at ``until`` (monotonic seconds), or as soon as none is."""
        while self.alive() and time.monotonic() < until:
            time.sleep(0.005)
        self._last_seen = self.alive()
        return self._last_seen

    def settle(self) -> float:
        """Wait until each that lives has reported a second of work that ended after now; the time afterwards.

        TimeoutError if one lives and does not work.
        """
        now = time.monotonic()
        for client in self.crew:
            with suppress(SuiteError):  # it has died, and is counted among the dead
                client.wait_for("second", _SECOND, after=now)
        return time.monotonic()


def slowest(crew: Iterable[Client], begin: float, end: float) -> float:
    """The longest time between two kernels of any of them within the time given (monotonic seconds), in seconds.

    Raises ValueError if one of them has not reported that whole time.
    """
    return max(longest(_reports(client), begin, end) for client in crew)


def longest(reports: Sequence[Report], begin: float, end: float) -> float:
    """The same for one client, from its reports in their order; those that touch the time count whole."""
    touching = [report for report in reports if report.at > begin and report.at - report.length < end]
    if not touching or touching[-1].at < end:
        raise ValueError("an innocent did not report all of the time that counts")
    return max(report.longest for report in touching)


def _reports(client: Client) -> list[Report]:
    seconds = client.all_seen("second")
    return [Report(event.monotonic, event.number("seconds"), event.number("max_gap")) for event in seconds]
