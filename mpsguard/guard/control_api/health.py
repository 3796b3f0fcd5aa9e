"""The health of a guard, and what a probe of another system is told of it. Pure functions."""

import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, Literal

import msgspec

from mpsguard.guard.evidence import Source
from mpsguard.guard.model import LaneReport, LaneState

MAX_TEXT: Final = 80
"""Characters of a probe's line: node-problem-detector cuts a message there (max_output_length)."""

FAULT_LASTS: Final = 60.0
"""Seconds that a lane is in FAULT before a Slurm node is drained for it. A lane leaves FAULT when its clients have
ended, mostly within a second; the alert on it waits as long."""
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


class ProbeKind(StrEnum):
    """What a probe is for."""

    LIVE = "live"
    """Kubernetes liveness: whether the guard's event loop turns, and nothing of lanes or GPUs."""
    READY = "ready"
    """Kubernetes readiness: whether a client that comes now is served."""
    SLURM = "slurm"
    """Slurm prolog and health check: whether the node may have jobs. A no drains it."""
    NPD = "npd"
    """Node-problem-detector: whether there is a fault now."""


_Asking = Literal[ProbeKind.READY, ProbeKind.SLURM, ProbeKind.NPD]


class DeviceFault(msgspec.Struct, frozen=True):
    """A fault of a GPU itself.

    It stands until the machine starts again, the driver says that nothing needs to be done with the GPU any more, or an
    operator says that it is repaired.
    """

    incident: str
    gpu: str | None
    xids: tuple[int, ...]
    lasting: bool = False
    """Whether no reset mends it: the GPU is to be replaced, and only an operator says that it was."""


class ProbeAnswer(msgspec.Struct, frozen=True):
    """What a probe is told."""

    ok: bool
    text: str
    """One line of ASCII, at most `MAX_TEXT` characters."""


class GuardStanding(msgspec.Struct, frozen=True):
    """What a probe's answer depends on."""

    settled: bool
    """Whether every lane has been adopted or started, or could not be."""
    active: Sequence[LaneReport]
    """The lanes that new clients come to."""
    spare: Sequence[LaneReport]
    """Those for standbys."""
    clients: int
    flaws: Sequence[PathFlaw]
    """What is wrong with the guard's own paths."""
    health: HealthReport
    device_faults: Sequence[DeviceFault]


def answer(purpose: ProbeKind, look: Callable[[], GuardStanding], now: float | None = None) -> ProbeAnswer:
    """Return what a probe is told. A guard that is only degraded is a yes, unless programs run without MPS.

    Args:
        purpose: What the probe is for.
        look: Returns how the guard stands; not called where the answer does not depend on it.
        now: UNIX seconds, by default those of the clock.
    """
    if purpose is ProbeKind.LIVE:
        return ProbeAnswer(True, "the guard answers")
    standing = look()
    problem = _problem(purpose, standing, time.time() if now is None else now)
    if problem is not None:
        return ProbeAnswer(False, line(problem))
    if standing.health.problems:
        return ProbeAnswer(True, line(f"ok, degraded: {standing.health.problems[0]}"))
    return ProbeAnswer(True, f"ok: {len(standing.active)} lane(s), {standing.clients} client(s)")


def line(text: str) -> str:
    """Return ``text`` as one line of printable ASCII with at most `MAX_TEXT` characters."""
    plain = "".join(each if " " <= each <= "~" else "?" for each in " ".join(text.split()))
    return plain if len(plain) <= MAX_TEXT else f"{plain[: MAX_TEXT - 3]}..."


def _problem(purpose: _Asking, standing: GuardStanding, now: float) -> str | None:
    """Return why the answer is no, or None."""
    kept_out = next((flaw.problem for flaw in standing.flaws if flaw.keeps_out), None)
    if kept_out is not None:
        return kept_out
    match purpose:
        case ProbeKind.READY:
            if not standing.settled:
                return "starting: not every lane has come up yet"
            return _first(standing.active, (LaneState.FAULT, LaneState.FAILING, LaneState.DOWN))
        case ProbeKind.SLURM:
            lasting = [lane for lane in standing.active if now - lane.since >= FAULT_LASTS]
            faulty = _first(lasting, (LaneState.FAULT,)) or _first(standing.active, (LaneState.FAILING,))
            return _device(standing.device_faults) or faulty
        case ProbeKind.NPD:
            every = (*standing.active, *standing.spare)
            return _device(standing.device_faults) or _first(every, (LaneState.FAULT, LaneState.FAILING))


def _first(lanes: Sequence[LaneReport], states: tuple[LaneState, ...]) -> str | None:
    return next((f"lane {lane.name} is {lane.state}: {lane.reason}" for lane in lanes if lane.state in states), None)


def _device(faults: Sequence[DeviceFault]) -> str | None:
    if not faults:
        return None
    first = faults[0]
    xids = f" Xid {', '.join(map(str, first.xids))}" if first.xids else ""
    return f"device fault of GPU {first.gpu or '?'}:{xids} (incident {first.incident})"
