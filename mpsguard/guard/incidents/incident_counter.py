"""Incident counter: counts incidents and their victims once their verdict has settled."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from mpsguard.guard.incident import Incident
from mpsguard.guard.incidents.tracker import TrackedIncident
from mpsguard.guard.metrics.registry import Metrics

_SETTLES: Final = 5.0
"""Seconds without another verdict after which one is counted. A first verdict may name no victims, or as a victim what
turns out to be the culprit, and a counter cannot go back."""
_KEPT: Final = 1000
"""Incidents that wait to be counted, and that are remembered as counted."""


class IncidentCounter:
    """Owns the incidents with a verdict that may change yet. All in one event loop."""

    def __init__(self, metrics: Metrics, domain_of: Callable[[Incident], str | None]) -> None:
        """``domain_of`` returns the domain of an incident, None if it is not known."""
        self._metrics = metrics
        self._domain_of = domain_of
        self._waiting: OrderedDict[str, tuple[Incident, str, asyncio.TimerHandle]] = OrderedDict()
        self._counted: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """Incident to the victims and the survivors that were counted."""

    def observe(self, tracked: TrackedIncident) -> None:
        """Take note of an incident that is new or has a new verdict."""
        before = self._waiting.pop(tracked.id, None)
        domain = self._domain_of(tracked.incident)
        if before is not None:
            before[2].cancel()
            # The clients may have gone by which the domain was known.
            domain = domain or before[1]
        timer = asyncio.get_running_loop().call_later(_SETTLES, self._count, tracked.id)
        self._waiting[tracked.id] = (tracked.incident, domain or "", timer)
        if len(self._waiting) > _KEPT:
            self._count(next(iter(self._waiting)))

    def close(self) -> None:
        """Count what waits."""
        for name in list(self._waiting):
            self._count(name)

    def _count(self, name: str) -> None:
        incident, domain, timer = self._waiting.pop(name)
        timer.cancel()
        victims, survived = len(incident.victims), len(incident.survived)
        counted = self._counted.pop(name, None)
        if counted is None:
            self._metrics.incidents.labels(incident.fault_class.value, incident.confidence.value, domain).inc()
        victims_before, survived_before = counted or (0, 0)
        self._metrics.victims.labels(domain).inc(max(victims - victims_before, 0))
        self._metrics.survivors.labels(domain).inc(max(survived - survived_before, 0))
        self._counted[name] = max(victims, victims_before), max(survived, survived_before)
        if len(self._counted) > _KEPT:
            self._counted.popitem(last=False)
