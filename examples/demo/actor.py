"""A client on the stage: it is told what to do, and what it says of itself appears in its column."""

import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from examples.demo.fact import fate
from examples.demo.screen import Screen
from mpsguard.linux.process import ProcessHandle
from tests.gpu.core.client import Client
from tests.gpu.core.errors import SuiteError
from tests.gpu.core.events import DIED, Outcome

PATIENCE: Final = 30.0
"""Seconds a client may take to start or to end."""
SHOWS: Final = 10.0
"""Seconds in which a fault must have reached those it reaches; 0.4 s were seen."""
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
        """Its process id, good until its end was waited for."""
        return self.client.pid

    def say(self, text: str) -> None:
        """A line in its name."""
        self._say(f"{self.name}: {text}")

    def arrive(self) -> str:
        """Wait until it has computed something; says and returns whether it runs under MPS, by its own account."""
        mode = WITH_MPS if self.client.wait_for("context", PATIENCE).number("mps") else WITHOUT_MPS
        self.client.wait_for("first_kernel", PATIENCE)
        self.say(f"runs its first kernel {mode}{self._screen.pid(self.pid)}")
        return mode

    def go(self) -> None:
        """Let it compute."""
        self.client.go()

    def kill(self) -> None:
        """SIGKILL from outside."""
        with ProcessHandle.open(self.pid) as process:
            process.signal(signal.SIGKILL)

    def works(self, since: float) -> bool:
        """Whether it reports a second of work that lies wholly after `since` (monotonic)."""
        try:
            return self.client.wait_for("second", PATIENCE, after=since + 1.0).number("iterations") > 0
        except (SuiteError, TimeoutError):
            return False

    def waits(self, seconds: float) -> bool:
        """Whether its `cuInit` does not come back for that long: that it waits can be seen in no other way."""
        self.client.wait_for("init_begin", PATIENCE)
        try:
            self.client.wait_for("init_end", seconds)
        except (SuiteError, TimeoutError) as error:
            return isinstance(error, TimeoutError)
        return False

    def stricken(self) -> str:
        """What became of a client that computes while somebody else does wrong; ends it if nothing did."""
        with suppress(SuiteError, TimeoutError):  # it ended in another way, or not at all: its fate says so
            self.client.wait_for(DIED, SHOWS)
        self.client.stop()
        outcome = self.finish()
        return LIVES if outcome.ok else fate(outcome)

    def finish(self) -> Outcome:
        """Wait for its end, and say how it ended."""
        outcome = self.client.finish(PATIENCE)
        self.say("finished" if outcome.ok else fate(outcome))
        return outcome
