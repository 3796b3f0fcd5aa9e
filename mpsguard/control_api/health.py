"""Whether a guard is well, as a pure function of its lanes' reports and its sensors' states."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from mpsguard.evidence import Source
from mpsguard.model import LaneReport, LaneState

ESSENTIAL: Final = {
    Source.UVM: "memory faults are not proven, and a crash ends the other clients",
    Source.KERNEL_LOG: "faults inside kernels and of the device are not seen",
    Source.NVML: "lifelines are held for their full time",
}
"""Sensors without which a promise is not kept, and which one."""


class Health(StrEnum):
    """From good to bad; `mpsguard-ctl status` turns it into its exit code."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAULT = "fault"


class Judgement(msgspec.Struct, frozen=True):
    """The health and one line for each reason against it."""

    health: Health
    problems: tuple[str, ...]


def judge(lanes: Sequence[LaneReport], absent: Mapping[str, str]) -> Judgement:
    """Judge a guard by its lanes and by the sensors that should be there and are not, by name and reason.

    A lane in FAULT is the gravest. A lane that is anything but ACTIVE, or flaps, degrades the guard, and so does an
    essential sensor that is absent.
    """
    problems = [f"lane {lane.name} is {lane.state}: {lane.reason}" for lane in lanes if lane.state != LaneState.ACTIVE]
    problems += [f"lane {lane.name} flaps: {lane.starts} starts" for lane in lanes if lane.flapping]
    problems += [
        f"sensor {source.value} is absent, so {consequence}: {absent[source]}"
        for source, consequence in ESSENTIAL.items()
        if source in absent
    ]
    if any(lane.state is LaneState.FAULT for lane in lanes):
        return Judgement(Health.FAULT, tuple(problems))
    return Judgement(Health.DEGRADED if problems else Health.HEALTHY, tuple(problems))
