"""What the metrics show of domains, clients and sensors at one moment."""

from collections.abc import Iterable, Mapping

from mpsguard.guard.daemon.domain import Domain
from mpsguard.guard.incidents.pipeline import IncidentPipeline
from mpsguard.guard.metrics.guard_state import CLIENTS_PER_GPU, GuardState, LaneSeries
from mpsguard.guard.pods import PodTable
from mpsguard.linux.cgroup_origin import origin
from mpsguard.linux.nvidia import nvidia_gpus


def client_limits(domains: Iterable[Domain]) -> dict[str, int]:
    """Return how many clients MPS takes on the GPUs of each domain; asks the driver, which may wait."""
    return {domain.name: CLIENTS_PER_GPU * _gpus(domain) for domain in domains}


def gpu_uuids() -> dict[str, str]:
    """Return the UUIDs of this machine's GPUs by PCI address; asks the driver, which may wait."""
    return {address: uuid for uuid, address in nvidia_gpus.pci_addresses().items()}


def state_of(
    domains: Iterable[Domain],
    pipeline: IncidentPipeline | None,
    pods: PodTable,
    *,
    limits: Mapping[str, int],
    uuids: Mapping[str, str],
    paths: Mapping[str, bool],
) -> GuardState:
    """Return the state of all ``domains``; without sensors as long as there is no ``pipeline``.

    Args:
        domains: All domains.
        pipeline: What has the sensors.
        pods: The pods of this node.
        limits: See `client_limits`.
        uuids: See `gpu_uuids`.
        paths: See `PathWatch.intact`.
    """
    every = tuple(domains)
    clients = tuple(client for domain in every for client in domain.clients.all())
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
        pods={client.process: pod for client in clients if (pod := pods.of(client)) is not None},
        pod_uids={client.process: uid for client in clients if (uid := origin(client.cgroup).pod) is not None},
        gpu_uuids=uuids,
        memory=pipeline.sensors.client_memory() if pipeline else {},
        client_limit=limits,
        sockets_held={domain.name: domain.sockets_held for domain in every},
        paths=paths,
        sensors={name: state.present for name, state in pipeline.sensors.recent_states()} if pipeline else {},
    )


def _gpus(domain: Domain) -> int:
    """Return the number of a domain's GPUs; 1 where the driver lists none."""
    if domain.settings.gpus != ("all",):
        return len(domain.settings.gpus)
    return max(len(nvidia_gpus.pci_addresses()), 1)
