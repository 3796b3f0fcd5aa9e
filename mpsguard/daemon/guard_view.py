"""What the page shows of the guard at one moment; asks no control daemon and waits for nothing."""

from collections.abc import Mapping

import msgspec

from mpsguard.cgroup_origin import origin
from mpsguard.control_api.health import HealthReport
from mpsguard.daemon.domain import Domain
from mpsguard.daemon.guard import Guard
from mpsguard.daemon.standing import health
from mpsguard.lanes.lane import Lane
from mpsguard.model import Client, ProcessKey
from mpsguard.pods import PodTable
from mpsguard.report.overview import OverviewClient, OverviewLane, OverviewSensor, shown_clients
from mpsguard.sensors.uvm_client import Attachment


class GuardView(msgspec.Struct, frozen=True):
    """The guard's own data: taken in the event loop, to be worked on beside it."""

    started_at: float
    health: HealthReport
    lanes: tuple[OverviewLane, ...]
    clients: tuple[Client, ...]
    attachments: Mapping[ProcessKey, Attachment]
    memory: Mapping[tuple[int, str], int]
    """Bytes by pid and GPU."""
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
        attachments=sensors.attachments() if sensors else {},
        memory=sensors.client_memory() if sensors else {},
        pods=guard.pods,
        sensors=tuple(OverviewSensor(name, state.present, state.detail) for name, state in states),
    )


def clients(view: GuardView) -> tuple[tuple[OverviewClient, ...], int]:
    """Return the clients that a page shows, and the number of the others; safe on any thread."""
    shown = shown_clients(view.clients)
    memory: dict[int, int] = {}
    for (pid, _), size in view.memory.items():
        memory[pid] = memory.get(pid, 0) + size
    made = tuple(_client(each, view.pods, view.attachments.get(each.process), memory) for each in shown)
    return made, len(view.clients) - len(made)


def _lane(domain: Domain, lane: Lane) -> OverviewLane:
    is_active = lane is domain.lane
    return OverviewLane(
        lane.report,
        "active" if is_active else "standby",
        sum(client.lane == lane.spec.name for client in domain.clients.all()),
        sum(endpoint.broker.parking.count for endpoint in domain.endpoints) if is_active else 0,
    )


def _client(client: Client, pods: PodTable, attachment: Attachment | None, memory: Mapping[int, int]) -> OverviewClient:
    pod = pods.of(client)
    return OverviewClient(
        client,
        memory.get(client.process.pid),
        str(pod) if pod else origin(client.cgroup).pod or "",
        attachment is not None and attachment.attached,
        "unknown to the uvm sensor" if attachment is None else attachment.reason,
    )
