"""A client of the tour: receives commands, and its events appear in its column."""

import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from examples.demo.fact import fate
from examples.demo.screen import Screen
from mpsguard.linux.processes.process import ProcessHandle
from tests.bench.core.client import Client
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import DIED, Outcome

PATIENCE: Final = 30.0
"""Seconds for a client to start or to end."""
SHOWS: Final = 10.0
"""Seconds for a fault to reach all affected clients; measured were 0.4 s."""
LIVES: Final = "lived on"
WITH_MPS: Final = "under MPS"
WITHOUT_MPS: Final = "WITHOUT MPS"


class Actor:
    """One client program and its name in the tour."""

    def __init__(self, name: str, client: Client, screen: Screen, say: Callable[[str], None]) -> None:
        self.name = name
        self.client = client
        self._screen = screen
        self._say = say

    @property
    def pid(self) -> int:
        """Its process id, valid until its end was waited for."""
        return self.client.pid

    def say(self, text: str) -> None:
        """Print a line in its name."""
        self._say(f"{self.name}: {text}")

    def arrive(self) -> str:
        """Wait for its first kernel; print and return whether it reports to run under MPS."""
        mode = WITH_MPS if self.client.wait_for("context", PATIENCE).number("mps") else WITHOUT_MPS
        self.client.wait_for("first_kernel", PATIENCE)
        self.say(f"runs its first kernel {mode}{self._screen.pid(self.pid)}")
        return mode

    def go(self) -> None:
        """Let it compute."""
        self.client.go()

    def kill(self) -> None:
        """SIGKILL it."""
        with ProcessHandle.open(self.pid) as process:
            process.signal(signal.SIGKILL)

    def works(self, since: float) -> bool:
        """Return whether it reports a second of work that lies wholly after `since` (monotonic)."""
        try:
            return self.client.wait_for("second", PATIENCE, after=since + 1.0).number("iterations") > 0
        except (SuiteError, TimeoutError):
            return False

    def waits(self, seconds: float) -> bool:
        """Return whether its `cuInit` does not return for ``seconds``; there is no other sign that it waits."""
        self.client.wait_for("init_begin", PATIENCE)
        try:
            self.client.wait_for("init_end", seconds)
        except (SuiteError, TimeoutError) as error:
            return isinstance(error, TimeoutError)
        return False

    def fate_after_fault(self) -> str:
        """Return the fate of a computing client after another client's fault; stop the client if it is unaffected."""
        with suppress(SuiteError, TimeoutError):  # it ended otherwise, or not at all: its outcome says which
            self.client.wait_for(DIED, SHOWS)
        self.client.stop()
        outcome = self.finish()
        return LIVES if outcome.ok else fate(outcome)

    def finish(self) -> Outcome:
        """Wait for its end, print and return how it ended."""
        outcome = self.client.finish(PATIENCE)
        self.say("finished" if outcome.ok else fate(outcome))
        return outcome
