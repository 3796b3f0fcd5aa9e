"""What sensors see of a lane's work that its server has to recover from, told to the lane, so that newcomers wait."""

from collections.abc import Iterable

from mpsguard.guard.evidence import ClientCame, Evidence, ProcessEnded, UvmFault, WentOver, Xid
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.incidents.failover import view_of
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.remedies import held_lifelines, takeover
from mpsguard.guard.sensors import kmod
from mpsguard.linux.identity import ProcessKey


class RecoverySigns:
    """Looks at each piece of evidence, before it is judged: a newcomer may be at the door."""

    def __init__(self, domains: Iterable[DomainView]) -> None:
        self._domains = list(domains)
        self._homes: dict[ProcessKey, Lane] = {}
        """The lanes of clients that live."""
        self._kept: dict[int, Lane] = {}
        """The lanes of clients that have ended and have a lifeline, by pid."""

    def observe(self, evidence: Evidence) -> None:
        """Tell a lane what an observation means for it, if anything."""
        what = evidence.what
        if isinstance(what, ClientCame | WentOver) and evidence.process is not None:
            lane = self._named(what.lane)
            if lane is not None:
                self._homes[evidence.process] = lane
        elif isinstance(what, ProcessEnded) and evidence.process is not None:
            home = self._homes.pop(evidence.process, None)
            clean = what.exit_code == 0 and what.execed is None
            if home is not None and not clean and self._is_empty(home):
                home.recovery.client_left_badly()
            if home is not None and what.kept:
                self._kept[evidence.process.pid] = home
        elif isinstance(what, (UvmFault, Xid)):
            lane = self._struck(evidence)
            if lane is not None and lane.report.servers:
                lane.recovery.fault_seen()

    def lifeline_released(self, pid: int, why: str) -> None:
        """Say that the address space of a client that has ended is let go of: work that still runs there faults now."""
        home = self._kept.pop(pid, None)
        if home is not None and why != held_lifelines.IDLE and self._is_empty(home):
            home.recovery.client_left_badly()

    def _is_empty(self, lane: Lane) -> bool:
        """Whether no client is left there; only then was error 46 seen. Crashes beside others hold no client up."""
        return all(home is not lane for home in self._homes.values())

    def _struck(self, evidence: Evidence) -> Lane | None:
        views = [view_of(domain, lane) for domain in self._domains for lane in domain.lanes.all]
        contained = isinstance(evidence.what, UvmFault) and kmod.contains()
        alone = any(domain.any_alone for domain in self._domains)
        name = takeover.lost_lane(evidence, views, frozenset(), contained=contained, alone=alone)
        return None if name is None else self._named(name)

    def _named(self, name: str) -> Lane | None:
        return next((lane for domain in self._domains if (lane := domain.lanes.named(name)) is not None), None)
