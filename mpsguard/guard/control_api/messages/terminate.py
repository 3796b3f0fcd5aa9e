"""Messages of the command ``terminate``."""

import msgspec

from mpsguard.guard.remedies.termination import Work

SIGNALS = ("TERM", "INT", "HUP", "QUIT", "KILL")


ANSWER_WITHIN = 5.0
"""Seconds the control daemon gets where the asker says nothing."""


MAX_WAIT = 300.0


class Arguments(msgspec.Struct):
    """The process to end, and what follows; times in seconds."""

    pid: int
    signal: str | None = None
    domain: str | None = None
    grace: float | None = None
    """After the signal: until SIGKILL."""
    force: bool = False
    answer_within: float = ANSWER_WITHIN


class TerminateResult(msgspec.Struct, frozen=True):
    """What came of it."""

    pid: int
    server: int | None
    answer: str
    """The control daemon's own words; "0" is success. Or why it said nothing."""
    terminated: bool
    """The work has ended, or was left to the lifeline of a stopped process that has been killed."""
    signalled: bool
    work: Work
    signals: tuple[str, ...]
    ended: bool
    """Whether the process has ended."""
