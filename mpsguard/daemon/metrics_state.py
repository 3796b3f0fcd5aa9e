"""What the metrics show of domains, clients and sensors at one moment."""

from collections.abc import Iterable, Mapping

from mpsguard.broker.cgroup_origin import origin
from mpsguard.daemon.domain import Domain
from mpsguard.incidents.pipeline import IncidentPipeline
from mpsguard.linux.nvidia import nvidia_gpus
from mpsguard.metrics.guard_state import CLIENTS_PER_GPU, GuardState, LaneSeries


def client_limits(domains: Iterable[Domain]) -> dict[str, int]:
    """Return how many clients MPS takes on the GPUs of each domain; asks the driver, which may wait."""
    return {domain.name: CLIENTS_PER_GPU * _gpus(domain) for domain in domains}


def state_of(domains: Iterable[Domain], limits: Mapping[str, int], pipeline: IncidentPipeline | None) -> GuardState:
    """Return the state of all ``domains``; without sensors as long as there is no ``pipeline``."""
    every = tuple(domains)
    clients = tuple(client for domain in every for client in domain.clients.all())
    pods = {client.cgroup: pod for client in clients if (pod := origin(client.cgroup).pod) is not None}
    return GuardState(
        lanes=tuple(
            LaneSeries(
                domain.name,
                lane.spec.name,
                "active" if lane is domain.lane else "standby",
                domain.settings.gpus,
            )
            for domain in every
            for lane in domain.lanes.all
        ),
        clients=clients,
        pods=pods,
        memory=pipeline.sensors.client_memory() if pipeline else {},
        client_limit=limits,
        sockets_held={domain.name: domain.sockets_held for domain in every},
        sensors={name: state.present for name, state in pipeline.sensors.recent_states()} if pipeline else {},
    )


def _gpus(domain: Domain) -> int:
    """Return the number of a domain's GPUs; 1 where the driver lists none."""
    if domain.settings.gpus != ("all",):
        return len(domain.settings.gpus)
    return max(len(nvidia_gpus.pci_addresses()), 1)
