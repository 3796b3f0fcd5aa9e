"""The health of a guard, as a pure function of its lanes' reports and its sensors' states."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from mpsguard.guard.evidence import Source
from mpsguard.guard.model import LaneReport, LaneState

ESSENTIAL: Final = {
    Source.UVM: "memory faults are not proven, and a crash ends the other clients",
    Source.KERNEL_LOG: "faults inside kernels and of the device are not seen",
    Source.NVML: "lifelines are held for their full time",
}
"""Essential sensors, and the consequence of the absence of each."""


class Health(StrEnum):
    """Health states, from good to bad; `mpsguard-ctl status` maps them to its exit codes."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAULT = "fault"


class HealthReport(msgspec.Struct, frozen=True):
    """The health, and one line for each problem."""

    health: Health
    problems: tuple[str, ...]


class PathFlaw(msgspec.Struct, frozen=True):
    """A path of the guard's own that is not as it should be, and was not mended."""

    path: str
    text: str
    """What is wrong, without the path."""
    keeps_out: bool
    """Whether programs that start now run without MPS."""

    @property
    def problem(self) -> str:
        """One line for operators."""
        return f"{'programs run without MPS: ' if self.keeps_out else ''}{self.path} {self.text}"


def judge(lanes: Sequence[LaneReport], absent: Mapping[str, str], flaws: Sequence[PathFlaw] = ()) -> HealthReport:
    """Return the health of a guard.

    A lane in FAULT means FAULT. A lane in another state than ACTIVE, or one that flaps or is in doubt, means DEGRADED,
    and so do an absent essential sensor and a path that could not be mended.

    Args:
        lanes: the lanes' reports.
        absent: why each absent sensor is absent, by its name.
        flaws: what is wrong with the guard's own paths.
    """
    problems = [flaw.problem for flaw in flaws]
    problems += [f"lane {lane.name} is {lane.state}: {lane.reason}" for lane in lanes if lane.state != LaneState.ACTIVE]
    problems += [f"lane {lane.name} flaps: {lane.starts} starts" for lane in lanes if lane.flapping]
    problems += [f"lane {lane.name} is in doubt: {lane.doubt}" for lane in lanes if lane.doubt]
    problems += [
        f"sensor {source.value} is absent, so {consequence}: {absent[source]}"
        for source, consequence in ESSENTIAL.items()
        if source in absent
    ]
    if any(lane.state is LaneState.FAULT for lane in lanes):
        return HealthReport(Health.FAULT, tuple(problems))
    return HealthReport(Health.DEGRADED if problems else Health.HEALTHY, tuple(problems))
