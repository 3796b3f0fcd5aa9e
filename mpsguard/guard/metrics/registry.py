"""The guard's Prometheus counters, gauges and histograms."""

from typing import Final, Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from mpsguard.guard.incident import Confidence, FaultClass
from mpsguard.guard.metrics.guard_state import GuardStateMetrics
from mpsguard.guard.model import LaneState

# One more series for each counter, with nothing that the guard's start does not tell.
disable_created_metrics()  # type: ignore[no-untyped-call]

RefusalReason = Literal[
    "silent",  # it sent nothing in time
    "garbage",  # it used another protocol
    "truncated",  # its message was too long
    "credentials",  # they were not the peer's
    "descriptors",  # it sent some
    "kind",  # its connection type is unknown or forbidden
    "hung_up",  # it left during the handshake
    "evicted",  # for another connection
    "foreign_user",  # an unprivileged guard cannot impersonate its user
    "share",  # its user has its share of clients
    "class",  # its service class is full, or refuses it
    "second_driver",  # it may not connect a second driver (now)
    "unwatched",  # it cannot be watched, and the domain refuses such clients
    "unidentified",  # its start time could not be read in time
    "other_lane",  # it has come to another lane at the same time
    "failed",  # the guard itself failed
]
"""Why the broker closed a connection."""

FAILOVER_OUTCOMES: Final = ("done", "failed", "no_standby")
SECOND_DRIVER_OUTCOMES: Final = ("went_over", "refused")
REPETITION_OUTCOMES: Final = ("completed", "faulted", "no_result")
PARKING_OUTCOMES: Final = ("ready", "left", "deadline", "too_many")
_PEERS: Final = ("probe", "client", "debuggee", "ui")
"""What a connection that is relayed to its end can have been."""


class Metrics:
    """All metrics of one guard, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.state = GuardStateMetrics()
        self.registry.register(self.state)
        self.connections = Counter(
            "mpsguard_connections", "Connections accepted on public sockets", ["domain"], registry=self.registry
        )
        self.open_connections = Gauge(
            "mpsguard_open_connections", "Connections held now", ["domain"], registry=self.registry
        )
        self.handshakes = Counter(
            "mpsguard_handshakes",
            "Connections relayed to their end, by what the peer was",
            ["domain", "kind"],
            registry=self.registry,
        )
        self.refused = Counter(
            "mpsguard_refused_connections",
            "Connections closed by the broker, by reason",
            ["domain", "reason"],
            registry=self.registry,
        )
        self.parked = Counter(
            "mpsguard_parked_clients",
            "Clients held back because the lane was not ready, by how it ended",
            ["domain", "outcome"],
            registry=self.registry,
        )
        self.parking = Gauge("mpsguard_clients_parking", "Clients held back now", ["domain"], registry=self.registry)
        self.clients = Gauge("mpsguard_clients", "Clients alive now", ["domain"], registry=self.registry)
        self.class_clients = Gauge(
            "mpsguard_class_clients", "Clients alive now, by service class", ["domain", "class"], registry=self.registry
        )
        self.class_failures = Counter(
            "mpsguard_classes_not_applied",
            "Clients that were connected without what their class gives",
            ["domain"],
            registry=self.registry,
        )
        self.memory_excesses = Counter(
            "mpsguard_memory_limit_exceeded",
            "Times that a client was found with more GPU memory than it was promised; class empty without one",
            ["domain", "class"],
            registry=self.registry,
        )
        self.objective_p99 = Gauge(
            "mpsguard_objective_p99_seconds",
            "p99 of a class with an objective in its last window; NaN without requests",
            ["domain", "class"],
            registry=self.registry,
        )
        self.objective_target = Gauge(
            "mpsguard_objective_target_seconds",
            "p99 that the class is to keep",
            ["domain", "class"],
            registry=self.registry,
        )
        self.objective_share = Gauge(
            "mpsguard_objective_share",
            "Percent of the SMs for the batch class with which the target would hold",
            ["domain", "class"],
            registry=self.registry,
        )
        self.objective_windows = Counter(
            "mpsguard_objective_windows",
            "Windows of a class with an objective: held, missed, or idle (too few requests to tell)",
            ["domain", "class", "result"],
            registry=self.registry,
        )
        self.paths_mended = Counter(
            "mpsguard_paths_mended",
            "Times that one of the guard's own paths was made again",
            ["path"],
            registry=self.registry,
        )
        self.unbrokered = Counter(
            "mpsguard_unbrokered_clients",
            "Clients found on a lane that did not connect through the guard",
            ["domain"],
            registry=self.registry,
        )
        self.unwatched = Counter(
            "mpsguard_unwatched_clients",
            "Times that a client was found to have something that cannot be watched",
            ["domain"],
            registry=self.registry,
        )
        self.relay_seconds = Histogram(
            "mpsguard_client_handshake_seconds",
            "From a client's connection to its handover, parking included",
            ["domain"],
            buckets=(0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1, 5, 30, 60),
            registry=self.registry,
        )
        self.lane_state = Gauge(
            "mpsguard_lane_state", "1 for the state a lane is in", ["domain", "lane", "state"], registry=self.registry
        )
        self.lane_starts = Gauge(
            "mpsguard_lane_starts",
            "Starts of the lane's control daemon by this guard",
            ["domain", "lane"],
            registry=self.registry,
        )
        self.turned_away = Counter(
            "mpsguard_clients_turned_away",
            "Clients that a control daemon hung up on instead of giving them a server",
            ["domain"],
            registry=self.registry,
        )
        self.servers_lost = Counter(
            "mpsguard_servers_lost",
            "Servers that ended within 5 s, and not because they were no longer needed",
            ["domain", "lane"],
            registry=self.registry,
        )
        self.lane_doubted = Gauge(
            "mpsguard_lane_doubted",
            "1 while one user alone is not served by a lane",
            ["domain", "lane"],
            registry=self.registry,
        )
        self.command_timeouts = Counter(
            "mpsguard_command_timeouts",
            "Commands the control daemon did not answer in time",
            ["domain", "lane"],
            registry=self.registry,
        )

        self.evidence = Counter("mpsguard_evidence", "Observations by sensor", ["source"], registry=self.registry)
        self.lifelines = Gauge("mpsguard_lifelines", "Lifelines of ended clients held now", registry=self.registry)
        self.incidents = Counter(
            "mpsguard_incidents",
            "Incidents by class, confidence, and domain if it is known",
            ["fault_class", "confidence", "domain"],
            registry=self.registry,
        )
        self.victims = Counter(
            "mpsguard_incident_victims",
            "Clients that were hit by faults of others, by domain if it is known",
            ["domain"],
            registry=self.registry,
        )
        self.survivors = Counter(
            "mpsguard_incident_survivors",
            "Clients that were hit by faults and went on by a second driver, by domain if it is known",
            ["domain"],
            registry=self.registry,
        )
        self._incidents_of("")
        self.failovers = Counter(
            "mpsguard_failovers",
            "Sessions on a lane that would not live",
            ["domain", "outcome"],
            registry=self.registry,
        )
        self.second_drivers = Counter(
            "mpsguard_second_drivers",
            "Clients of a lane that faulted, under the preload with a second driver: gone over to it, or refused",
            ["domain", "outcome"],
            registry=self.registry,
        )
        self.repetitions = Counter(
            "mpsguard_repetitions",
            "Clients of a lane that faulted, which repeated their work in flight alone, by their own word",
            ["domain", "outcome"],
            registry=self.registry,
        )
        self.remedies = Counter(
            "mpsguard_remedies", "Remedies by outcome", ["remedy", "outcome"], registry=self.registry
        )

    def domain(self, name: str, *classes: str) -> None:
        """Create every series of a domain with these service classes, so that an unused counter reads 0."""
        for reason in get_args(RefusalReason):
            self.refused.labels(name, reason)
        for counter in (self.connections, self.open_connections, self.parking, self.clients):
            counter.labels(name)
        for total in (self.unwatched, self.unbrokered, self.class_failures, self.turned_away, self.relay_seconds):
            total.labels(name)
        for outcome in FAILOVER_OUTCOMES:
            self.failovers.labels(name, outcome)
        for outcome in SECOND_DRIVER_OUTCOMES:
            self.second_drivers.labels(name, outcome)
        for outcome in REPETITION_OUTCOMES:
            self.repetitions.labels(name, outcome)
        for outcome in PARKING_OUTCOMES:
            self.parked.labels(name, outcome)
        for peer in _PEERS:
            self.handshakes.labels(name, peer)
        for service_class in ("", *classes):
            self.memory_excesses.labels(name, service_class)
        self._incidents_of(name)

    def _incidents_of(self, domain: str) -> None:
        self.victims.labels(domain)
        self.survivors.labels(domain)
        for fault_class in FaultClass:
            for confidence in Confidence:
                self.incidents.labels(fault_class.value, confidence.value, domain)

    def set_lane_state(self, domain: str, lane: str, state: LaneState) -> None:
        """Set the gauge of one state to 1, and those of the others to 0."""
        self.command_timeouts.labels(domain, lane)
        self.servers_lost.labels(domain, lane)
        for each in LaneState:
            self.lane_state.labels(domain, lane, each.value).set(each is state)

    def exposition(self) -> str:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry).decode()
