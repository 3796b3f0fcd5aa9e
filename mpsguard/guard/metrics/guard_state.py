"""Prometheus collector for what is so now, not counted as it happens: lanes, clients, sockets, sensors."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

import mpsguard
from mpsguard.guard.model import Client
from mpsguard.guard.pods import ClientPod
from mpsguard.linux.identity import ProcessKey
from mpsguard.vault.server.counters import Counters

_TOTALS: Final = {
    "regions_made": "Regions given to the vault",
    "regions_opened": "Times a region's descriptors were handed out",
    "regions_released": "Regions taken out by their writer or by command",
    "regions_expired": "Regions dropped with an expired session",
    "regions_lost": "Regions not found again after a restart of the guard",
    "fences": "Times a writer's lease ended",
    "promotions": "Times a standby was made the writer",
    "early_deaths": "Promoted writers that ended, not in order, within 10 s of their promotion",
    "connections_made": "Connections accepted",
}
_NOW: Final = {
    "connections": "Connections open now",
    "sessions": "Sessions held now",
    "regions": "Regions held now",
    "chunks": "Descriptors of memory held now",
    "bytes": "Bytes of memory held now",
    "unkept": "Descriptor bundles without a storage now: they would not outlive the guard",
}
CLIENTS_PER_GPU: Final = 60
"""Clients that MPS takes on one GPU (driver 580; earlier ones take 48, which the vendor's device plugin allows)."""

_SHOWN: Final = 60
"""Clients with a series of their own: each is a new one for Prometheus to keep. Those that came first are shown."""


class LaneSeries(msgspec.Struct, frozen=True):
    """A lane, by what does not change with its state."""

    domain: str
    lane: str
    role: str
    """active or standby."""
    gpus: tuple[str, ...]


class GuardState(msgspec.Struct, frozen=True):
    """What is so at one moment."""

    lanes: tuple[LaneSeries, ...] = ()
    clients: tuple[Client, ...] = ()
    pods: Mapping[ProcessKey, ClientPod] = {}
    """The pods of clients, as far as the guard knows their names."""
    pod_uids: Mapping[ProcessKey, str] = {}
    """The UIDs of clients' pods by their control groups."""
    memory: Mapping[tuple[int, str], int] = {}
    """Bytes of GPU memory by pid and PCI address of the GPU."""
    gpu_uuids: Mapping[str, str] = {}
    """UUIDs of the GPUs by PCI address."""
    client_limit: Mapping[str, int] = {}
    sockets_held: Mapping[str, bool] = {}
    paths: Mapping[str, bool] = {}
    """Whether each of the guard's own paths is as it should be."""
    sensors: Mapping[str, bool] = {}


class GuardStateMetrics(Collector):
    """Collects the state that was set last, on any thread."""

    def __init__(self) -> None:
        self.state = GuardState()

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        state = self.state
        yield InfoMetricFamily("mpsguard_build", "The guard's version", value={"version": mpsguard.__version__})
        lanes = InfoMetricFamily("mpsguard_lane", "Lanes and their roles", labels=["domain", "lane"])
        for lane in state.lanes:
            lanes.add_metric([lane.domain, lane.lane], {"role": lane.role, "gpus": ",".join(lane.gpus)})
        yield lanes
        yield _clients(state)
        yield _memory(state)
        limits = GaugeMetricFamily(
            "mpsguard_client_limit",
            "Clients that MPS takes on the domain's GPUs, each on one",
            labels=["domain"],
        )
        for domain, limit in state.client_limit.items():
            limits.add_metric([domain], limit)
        yield limits
        held = GaugeMetricFamily(
            "mpsguard_sockets_held",
            "1 if the service manager holds the public sockets: clients wait while no guard runs",
            labels=["domain"],
        )
        for domain, is_held in state.sockets_held.items():
            held.add_metric([domain], is_held)
        yield held
        paths = GaugeMetricFamily(
            "mpsguard_path_intact", "1 for a path of the guard's own that is as it should be", labels=["path"]
        )
        for path, is_intact in state.paths.items():
            paths.add_metric([path], is_intact)
        yield paths
        sensors = GaugeMetricFamily("mpsguard_sensor_up", "1 for a sensor that can see something", labels=["sensor"])
        for name, is_up in state.sensors.items():
            sensors.add_metric([name], is_up)
        yield sensors


def _shown(state: GuardState) -> list[Client]:
    return sorted(state.clients, key=lambda each: each.connected_at)[:_SHOWN]


def _clients(state: GuardState) -> Metric:
    """One series for each client, without its command line, which is its user's own."""
    family = InfoMetricFamily("mpsguard_client", "Clients alive now, the first 60", labels=["domain", "lane", "pid"])
    for client in _shown(state):
        more = {
            "uid": str(client.uid),
            "class": client.service_class or "",
            "container_id": client.container or "",
            "pod_uid": pod.uid if (pod := state.pods.get(client.process)) else state.pod_uids.get(client.process, ""),
            **_pod_labels(pod),
        }
        family.add_metric([client.domain, client.lane, str(client.process.pid)], more)
    return family


def _memory(state: GuardState) -> Metric:
    family = GaugeMetricFamily(
        "mpsguard_client_memory_bytes",
        "GPU memory of the first 60 clients, as NVML has it",
        labels=["domain", "lane", "pid", "gpu", "UUID", *_pod_labels(None)],
    )
    clients = {client.process.pid: client for client in _shown(state)}
    for (pid, gpu), size in state.memory.items():
        client = clients.get(pid)
        if client is not None:
            named = _pod_labels(state.pods.get(client.process)).values()
            uuid = state.gpu_uuids.get(gpu, "")
            family.add_metric([client.domain, client.lane, str(pid), gpu, uuid, *named], size)
    return family


def _pod_labels(pod: ClientPod | None) -> dict[str, str]:
    """The labels by which dcgm-exporter names a container, with empty values outside of known pods."""
    if pod is None:
        return {"namespace": "", "pod": "", "container": ""}
    return {"namespace": pod.namespace, "pod": pod.name, "container": pod.container}


class VaultMetrics(Collector):
    """Collects the counters of the vault; none while there is no vault."""

    def __init__(self, counters: Callable[[], Counters | None]) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """See `Collector`; called on a thread of the metrics server."""
        counters = self._counters()
        if counters is None:
            return
        for name, text in _TOTALS.items():
            yield CounterMetricFamily(f"mpsguard_vault_{name}", text, value=getattr(counters, name))
        for name, text in _NOW.items():
            yield GaugeMetricFamily(f"mpsguard_vault_{name}", text, value=getattr(counters, name))
        refusals = CounterMetricFamily("mpsguard_vault_refusals", "Requests refused, by code", labels=["code"])
        for code, count in counters.refusals.items():
            refusals.add_metric([code], count)
        yield refusals
