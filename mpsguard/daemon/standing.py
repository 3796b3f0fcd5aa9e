"""How the guard stands at this moment, for the probes; asks no control daemon and waits for nothing."""

from mpsguard.control_api.health import HealthReport, judge
from mpsguard.control_api.probes import ProbeAnswer, Purpose, Standing, answer
from mpsguard.daemon.guard import Guard
from mpsguard.model import LaneReport


def probe(guard: Guard, purpose: Purpose) -> ProbeAnswer:
    """Return what a probe is told now; to be called in the guard's event loop."""
    return answer(purpose, lambda: _standing(guard))


def health(guard: Guard, lanes: list[LaneReport]) -> HealthReport:
    """Return the guard's health, given the reports of all lanes."""
    states = guard.pipeline.sensors.states() if guard.pipeline else ()
    real = any(not domain.settings.simulated for domain in guard.domains.values())
    return judge(lanes, {name: state.detail for name, state in states if real and not state.present})


def _standing(guard: Guard) -> Standing:
    domains = guard.domains.values()
    active = [domain.lane.report for domain in domains]
    spare = [domain.lanes.spare.report for domain in domains if domain.lanes.spare is not None]
    return Standing(
        settled=all(domain.settled.is_set() for domain in domains),
        active=active,
        spare=spare,
        clients=sum(len(domain.clients) for domain in domains),
        health=health(guard, [*active, *spare]),
        device_faults=guard.pipeline.device_faults.standing if guard.pipeline else (),
    )
