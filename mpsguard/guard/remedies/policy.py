"""Policy: which remedies follow from an incident. Pure.

A remedy that ends a process needs more than its mode: it ends only the culprit itself, only a living client of this
guard, only if it is proven to be the culprit, or likely and the configuration allows that, and only on grounds that no
other user can forge (`mpsguard.guard.triage.grounds`).
"""

from enum import StrEnum
from typing import Final

import msgspec

from mpsguard.guard.config import Remedies, RemedyName, Step
from mpsguard.guard.incident import Confidence, FaultClass, Incident
from mpsguard.guard.triage import grounds

ENDING: Final[frozenset[RemedyName]] = frozenset({"terminate"})
"""Remedies that end a process."""


class Standing(StrEnum):
    """The present state of a culprit."""

    CLIENT = "client"
    """It lives, and is a client of one of this guard's lanes."""
    ENDED = "ended"
    STRANGER = "stranger"
    """It lives, but is no client of this guard, which must not end it."""


class Verdict(StrEnum):
    """Whether one remedy is applied."""

    RUN = "run"
    OBSERVE = "observe"
    """Record what the remedy would have done, and do nothing."""
    DECLINE = "decline"
    """Do nothing, and record why."""


class Decision(msgspec.Struct, frozen=True):
    """The decision on one remedy for one incident."""

    step: Step
    verdict: Verdict
    why: str
    revision: int = 1
    """The revision of the incident that it was decided on."""


def steps_for(remedies: Remedies, fault_class: FaultClass) -> tuple[Step, ...]:
    """Return the configured steps for a class of faults."""
    steps: tuple[Step, ...] = getattr(remedies, fault_class.value)
    return steps


def decide(incident: Incident, remedies: Remedies, standing: Standing | None) -> tuple[Decision, ...]:
    """Return a decision on each configured remedy that is not off, in order.

    Args:
        incident: the incident.
        remedies: the domain's configuration.
        standing: the culprit's present state; None if no process is named.
    """
    return tuple(
        _decide(incident, step, standing) for step in steps_for(remedies, incident.fault_class) if step.mode != "off"
    )


def _decide(incident: Incident, step: Step, standing: Standing | None) -> Decision:
    against = _against(incident, step, standing) if step.remedy in ENDING else None
    if against is not None:
        return Decision(step, Verdict.DECLINE, against, incident.revision)
    why = f"the culprit is {incident.confidence}" if standing is not None else "it needs no culprit"
    return Decision(step, Verdict.RUN if step.mode == "enforce" else Verdict.OBSERVE, why, incident.revision)


def _against(incident: Incident, step: Step, standing: Standing | None) -> str | None:
    """Return why no process may be ended, or None."""
    if incident.culprit is None or incident.culprit.process is None or standing is None:
        return "no process is named"
    if incident.confidence is Confidence.UNKNOWN:
        return "the culprit is not known"
    if incident.confidence is Confidence.LIKELY and step.at_least != Confidence.LIKELY.value:
        return 'the culprit is only likely; at_least = "likely" would make that enough'
    worth = grounds.worth(incident.ground)
    if worth is None or not worth.may_act:
        return f"no process is ended on these grounds: {worth.what if worth else 'unknown ones'}"
    if standing is Standing.ENDED:
        return "the culprit has ended"
    if standing is Standing.STRANGER:
        return "the culprit is no client of this guard"
    return None
