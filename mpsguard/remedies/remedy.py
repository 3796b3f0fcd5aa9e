"""What every remedy is: idempotent, bound by a deadline, and an outcome as data."""

from typing import Protocol

import msgspec

from mpsguard.config import RemedyName, Step
from mpsguard.incident import Incident
from mpsguard.model import ProcessKey


class Done(msgspec.Struct, frozen=True, tag="done"):
    """It is as the remedy would have it."""

    text: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It is not; ``text`` says why, and what was left undone."""

    text: str


class NotNeeded(msgspec.Struct, frozen=True, tag="not_needed"):
    """There was nothing to do; ``text`` says why."""

    text: str


class Observed(msgspec.Struct, frozen=True, tag="observed"):
    """Nothing was done; ``text`` says what would have been."""

    text: str


Outcome = Done | Failed | NotNeeded | Observed


class RemedyCase(msgspec.Struct, frozen=True):
    """What a remedy is for."""

    incident_id: str
    incident: Incident
    culprit: ProcessKey | None
    """The process named, if one is."""
    step: Step
    """As it is configured."""


class Remedy(Protocol):
    """One remedy of one domain. What it holds while it works it gives back on every path, being cancelled included."""

    @property
    def name(self) -> RemedyName:
        """As in the configuration."""

    def within(self, case: RemedyCase) -> float:
        """Seconds after which it is broken off; longer than all its own deadlines together."""

    def would(self, case: RemedyCase) -> str:
        """What `apply` would do, in one clause; for people."""

    async def apply(self, case: RemedyCase) -> Outcome:
        """Do it. A second time changes nothing more. Need not raise: what fails is an outcome."""
