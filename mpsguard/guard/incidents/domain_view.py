"""What incidents need to know of a domain."""

import time
from dataclasses import dataclass, field
from functools import cached_property

from mpsguard.guard import config
from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.lanes.lane_set import LaneSet
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.nvidia import nvidia_gpus


@dataclass
class DomainView:
    """A domain's configuration, clients and lanes, which are the domain's own. A reload replaces the configuration."""

    settings: config.DomainConfig
    clients: ClientTable
    lanes: LaneSet
    culprits: set[ProcessKey] = field(default_factory=set)
    """Clients that are proven to have caused a fault that was not contained."""
    innocents: dict[ProcessKey, float] = field(default_factory=dict)
    """Clients that are proven innocent of a fault that hit them, with when it began (CLOCK_MONOTONIC)."""
    alone: dict[ProcessKey, float] = field(default_factory=dict)
    """Clients of faulted lanes that say that their work is outside of MPS now, with until when that is believed."""

    @property
    def name(self) -> str:
        """The domain's name."""
        return self.settings.name

    @cached_property
    def addresses(self) -> frozenset[str] | None:
        """The PCI addresses of the domain's GPUs; None if they are not all configured by UUID."""
        known = nvidia_gpus.pci_addresses()
        found = [known.get(gpu) for gpu in self.settings.gpus]
        return None if None in found else frozenset(address for address in found if address is not None)

    def is_alone(self, process: ProcessKey) -> bool:
        """Return whether a client's work is outside of MPS, where it repeats what it lost."""
        return self.alone.get(process, 0.0) > time.monotonic()

    @property
    def any_alone(self) -> bool:
        """Whether any client's work is: a fault that names no process may be its."""
        return any(map(self.is_alone, self.alone))

    def class_share(self, name: str | None) -> float | None:
        """Return what a service class gives its clients at most; None without a limit."""
        return next((each.sm_share for each in self.settings.classes if each.name == name), None)

    def move_to(self, lane: str, was: str, why: str, events: EventStream) -> str | None:
        """Bring new clients to another lane from now on. Return why the next guard will not know it, or None."""
        if not self.lanes.move_to(lane):
            return None
        events.publish("lanes_changed_places", self.name, lane=lane, was=was, why=why)
        try:
            self.lanes.save()
        except OSError as error:
            active = self.lanes.active.spec.name
            events.publish("active_lane_not_saved", self.name, lane=active, detail=str(error))
            return str(error)
        return None

    def lane_of(self, process: ProcessKey) -> Lane:
        """Return the lane that a client is on; the active one for a process that is no client."""
        client = self.clients.get(process)
        return (client is not None and self.lanes.named(client.lane)) or self.lanes.active

    def lanes_of(self, process: ProcessKey) -> tuple[Lane, ...]:
        """Return the lanes on which a client may have work: its own, and that of its second driver."""
        client = self.clients.get(process)
        second = self.lanes.named(client.second_lane) if client is not None and client.second_lane is not None else None
        own = self.lane_of(process)
        return (own,) if second is None or second is own else (own, second)
