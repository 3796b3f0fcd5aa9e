"""What incidents need to know of a domain."""

from dataclasses import dataclass

from mpsguard import config
from mpsguard.broker.client_table import ClientTable
from mpsguard.lanes.lane import Lane
from mpsguard.lanes.lane_set import LaneSet
from mpsguard.model import ProcessKey


@dataclass
class DomainView:
    """A domain's configuration, clients and lanes, which are the domain's own. A reload replaces the configuration."""

    settings: config.DomainConfig
    clients: ClientTable
    lanes: LaneSet

    @property
    def name(self) -> str:
        """The domain's name."""
        return self.settings.name

    def class_share(self, name: str | None) -> float | None:
        """Return what a service class gives its clients at most; None without a limit."""
        return next((each.sm_share for each in self.settings.classes if each.name == name), None)

    def lane_of(self, process: ProcessKey) -> Lane:
        """Return the lane that a client is on; the active one for a process that is no client."""
        client = self.clients.get(process)
        return (client is not None and self.lanes.named(client.lane)) or self.lanes.active
