"""What probes are told and the page shows of the guard at one moment; asks no control daemon and waits for nothing."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec

from mpsguard.guard.control_api.health import GuardStanding, HealthReport, ProbeAnswer, ProbeKind, answer, judge
from mpsguard.guard.control_api.messages.clients import Survival
from mpsguard.guard.daemon.domain import Domain
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.model import Client, LaneReport, Watched
from mpsguard.guard.pods import PodTable
from mpsguard.guard.report.overview import OverviewClient, OverviewGpu, OverviewLane, OverviewSensor, shown_clients
from mpsguard.guard.sensors.sensor import SensorState
from mpsguard.guard.sensors.uvm_client import Attachment
from mpsguard.linux.cgroup_origin import origin
from mpsguard.linux.identity import ProcessKey


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


class GuardView(msgspec.Struct, frozen=True):
    """The guard's own data: taken in the event loop, to be worked on beside it."""

    started_at: float
    health: HealthReport
    lanes: tuple[OverviewLane, ...]
    clients: tuple[Client, ...]
    gpus: tuple[OverviewGpu, ...]
    attachments: Mapping[ProcessKey, Attachment]
    watches: bool
    """Whether there is a sensor that could watch the clients."""
    memory: Mapping[int, int]
    """Bytes by pid."""
    exceeding: Collection[ProcessKey]
    """Clients with more memory than they were promised."""
    survival: Mapping[ProcessKey, Survival]
    """Clients with a second driver."""
    pods: PodTable
    """As they were told at the time; replaced as a whole."""
    sensors: tuple[OverviewSensor, ...]


def take(guard: Guard) -> GuardView:
    """Return the guard now; to be called in its event loop, which it takes as long as there are clients to list."""
    domains = tuple(guard.domains.values())
    lanes = tuple(_lane(domain, lane) for domain in domains for lane in domain.lanes.all)
    sensors = guard.pipeline.sensors if guard.pipeline else None
    states = sensors.recent_states() if sensors else ()
    return GuardView(
        started_at=guard.started_at,
        health=health(guard, [lane.report for lane in lanes], states),
        lanes=lanes,
        clients=tuple(client for domain in domains for client in domain.clients.all()),
        gpus=_gpus(guard),
        attachments=sensors.attachments() if sensors else {},
        watches=sensors is not None and sensors.watches(),
        memory=sensors.client_memory_of_all_gpus() if sensors else {},
        exceeding=guard.pipeline.memory.exceeding() if guard.pipeline else (),
        survival={
            client.process: survival
            for domain in domains
            for client in domain.clients.all()
            if (survival := domain.seconds.survival(client)) is not None
        },
        pods=guard.pods,
        sensors=tuple(OverviewSensor(name, state.present, state.detail) for name, state in states),
    )


def clients(view: GuardView) -> tuple[tuple[OverviewClient, ...], int]:
    """Return the clients that a page shows, and the number of the others; safe on any thread."""
    shown = shown_clients(view.clients)
    made = tuple(_client(each, view) for each in shown)
    return made, len(view.clients) - len(made)


def _lane(domain: Domain, lane: Lane) -> OverviewLane:
    is_active = lane is domain.lane
    return OverviewLane(
        lane.report,
        "active" if is_active else "standby",
        sum(client.lane == lane.spec.name for client in domain.clients.all()),
        sum(endpoint.broker.parking.count for endpoint in domain.endpoints) if is_active else 0,
    )


def _gpus(guard: Guard) -> tuple[OverviewGpu, ...]:
    if guard.pipeline is None:
        return ()
    sensors = guard.pipeline.sensors
    pids = {client.process.pid for domain in guard.domains.values() for client in domain.clients.all()}
    having = Counter(address for pid, address in sensors.client_memory() if pid in pids)
    faulty = {fault.gpu for fault in guard.pipeline.device_faults.standing}
    return tuple(
        OverviewGpu(
            gpu.identity.address,
            gpu.identity.model,
            gpu.used,
            gpu.total,
            having[gpu.identity.address],
            gpu.identity.address in faulty,
        )
        for gpu in sensors.gpus()
    )


def _client(client: Client, view: GuardView) -> OverviewClient:
    pod = view.pods.of(client)
    attachment = view.attachments.get(client.process)
    return OverviewClient(
        client,
        view.memory.get(client.process.pid),
        str(pod) if pod else origin(client.cgroup).pod or "",
        Watched.of(
            watched=attachment is not None and attachment.attached,
            unwatchable=attachment is not None and attachment.unwatchable,
            sensor=view.watches,
        ),
        "unknown to the uvm sensor" if attachment is None else attachment.reason,
        client.process in view.exceeding,
        str(view.survival.get(client.process, "")),
    )
