"""How the guard stands at this moment, for the probes; asks no control daemon and waits for nothing."""

from collections.abc import Sequence

from mpsguard.guard.control_api.health import HealthReport, judge
from mpsguard.guard.control_api.probes import GuardStanding, ProbeAnswer, ProbeKind, answer
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.model import LaneReport
from mpsguard.guard.sensors.state import SensorState


def probe(guard: Guard, purpose: ProbeKind) -> ProbeAnswer:
    """Return what a probe is told now; to be called in the guard's event loop."""
    return answer(purpose, lambda: _standing(guard))


def health(guard: Guard, lanes: Sequence[LaneReport], states: Sequence[tuple[str, SensorState]]) -> HealthReport:
    """Return the guard's health, given the reports of all lanes and the states of all sensors."""
    real = any(not domain.settings.simulated for domain in guard.domains.values())
    absent = {name: state.detail for name, state in states if real and not state.present}
    return judge(lanes, absent, guard.paths.flaws)


def _standing(guard: Guard) -> GuardStanding:
    domains = guard.domains.values()
    active = [domain.lane.report for domain in domains]
    spare = [domain.lanes.spare.report for domain in domains if domain.lanes.spare is not None]
    return GuardStanding(
        settled=all(domain.settled.is_set() for domain in domains),
        active=active,
        spare=spare,
        clients=sum(len(domain.clients) for domain in domains),
        flaws=guard.paths.flaws,
        health=health(guard, [*active, *spare], guard.pipeline.sensors.recent_states() if guard.pipeline else ()),
        device_faults=guard.pipeline.device_faults.standing if guard.pipeline else (),
    )
