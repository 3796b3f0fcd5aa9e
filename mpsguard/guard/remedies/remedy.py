"""The interface of remedies: each is idempotent, has a deadline, and returns its outcome as data."""

from typing import Protocol

import msgspec

from mpsguard.guard.config import RemedyName, Step
from mpsguard.guard.incident import Incident
from mpsguard.linux.identity import ProcessKey


class Applied(msgspec.Struct, frozen=True, tag="done"):
    """The remedy achieved its goal."""

    text: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The remedy failed; ``text`` says why, and what was left undone."""

    text: str


class NotNeeded(msgspec.Struct, frozen=True, tag="not_needed"):
    """No action was necessary; ``text`` says why."""

    text: str


class Observed(msgspec.Struct, frozen=True, tag="observed"):
    """The remedy was not applied; ``text`` says what it would have done."""

    text: str


Outcome = Applied | Failed | NotNeeded | Observed


class RemedyCase(msgspec.Struct, frozen=True):
    """The incident that a remedy is applied to."""

    incident_id: str
    incident: Incident
    culprit: ProcessKey | None
    """The culprit, if a process is named."""
    step: Step
    """The remedy's configuration."""


class Remedy(Protocol):
    """One remedy of one domain. It releases its resources on every path, also when it is cancelled."""

    @property
    def name(self) -> RemedyName:
        """The name in the configuration."""

    def within(self, case: RemedyCase) -> float:
        """Return the seconds after which the remedy is cancelled; more than all its own deadlines together."""

    def would(self, case: RemedyCase) -> str:
        """Return what `apply` would do, as one clause for the journal."""

    async def apply(self, case: RemedyCase) -> Outcome:
        """Apply the remedy. It is idempotent, and reports failures as an outcome."""
