"""Whether a guard is well, as a pure function of its lanes' reports."""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from mpsguard.model import LaneReport, LaneState


class Health(StrEnum):
    """From good to bad; `mpsguard-ctl status` turns it into its exit code."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAULT = "fault"


class Judgement(msgspec.Struct, frozen=True):
    """The health and one line for each reason against it."""

    health: Health
    problems: tuple[str, ...]


def judge(lanes: Sequence[LaneReport]) -> Judgement:
    """A lane in FAULT is the gravest; one that is anything but ACTIVE, or flaps, degrades the guard."""
    problems = [f"lane {lane.name} is {lane.state}: {lane.reason}" for lane in lanes if lane.state != LaneState.ACTIVE]
    problems += [f"lane {lane.name} flaps: {lane.starts} starts" for lane in lanes if lane.flapping]
    if any(lane.state is LaneState.FAULT for lane in lanes):
        return Judgement(Health.FAULT, tuple(problems))
    return Judgement(Health.DEGRADED if problems else Health.HEALTHY, tuple(problems))
