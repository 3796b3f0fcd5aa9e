"""The loop of one objective: reads how long requests take, asks the controller, tells and sets what it decided."""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from mpsguard.guard.broker.lowered_shares import ClassCeilings
from mpsguard.guard.config import Objective
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.control_api.messages.lanes import ObjectiveView
from mpsguard.guard.incidents import objective_controller
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.incidents.objective_controller import Measurement
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.guard.model import Client
from mpsguard.vault.server.vault import Vault
from mpsguard.vault.wire.latency_counts import LatencyCounts, merged
from mpsguard.vault.wire.region import SessionKey, SessionRecord

WHOLE: Final = 100.0
"""Percent of the SMs of a client for which the guard has set no share."""


MOST_NAMED: Final = 16
"""Processes that an event names; of all it tells the number."""


class SessionWindow(NamedTuple):
    """What one session's requests of a window say."""

    session: SessionKey | None
    """None: of several sessions with few requests each, together."""
    requests: int
    p99: float | None
    """In seconds; None without requests."""


class WorstSession:
    """The session of a window that decides on the objective: the slowest of those with enough requests to tell.

    Requests of all sessions together would hide those of one: a session with many short requests makes 99 of 100 fast,
    whatever the requests of another one take.
    """

    def __init__(self, least_requests: int) -> None:
        """``least_requests``: a session with fewer is judged together with all others like it."""
        self._least = least_requests
        self._worst: SessionWindow | None = None
        self._few = LatencyCounts((), 0.0)

    def add(self, session: SessionKey, window: LatencyCounts) -> None:
        """Take the requests of a session; some 0.1 ms of work."""
        requests = window.requests()
        if requests < self._least:
            self._few = merged((self._few, window))
        else:
            self._take(SessionWindow(session, requests, window.percentile(0.99)))

    def result(self) -> SessionWindow:
        """Return the worst; if no session has enough requests, those of all together, however few."""
        requests = self._few.requests()
        if requests >= self._least or self._worst is None:
            self._take(SessionWindow(None, requests, self._few.percentile(0.99)))
        assert self._worst is not None
        return self._worst

    def _take(self, window: SessionWindow) -> None:
        if self._worst is None or (window.p99 or 0.0) > (self._worst.p99 or 0.0):
            self._worst = window


def share_of(domain: DomainView, client: Client) -> float:
    """Return the share that a client has, as far as the guard knows: that of its class if it came before the guard."""
    if client.sm_share is not None:
        return client.sm_share
    return domain.class_share(client.service_class) or WHOLE


class ObjectiveLoop:
    """Measures one objective of a domain, window by window."""

    def __init__(
        self, domain: DomainView, objective: Objective, ceilings: ClassCeilings, events: EventStream, metrics: Metrics
    ) -> None:
        """``ceilings``: the domain's; set with the mode ``enforce`` alone."""
        self._domain = domain
        self._objective = objective
        self._ceilings = ceilings
        self._events = events
        self._class_share = domain.class_share(objective.batch)
        self._state = objective_controller.initial(objective, self._class_share)
        self._measured = Measurement(0, None, None)
        self._slowest: SessionKey | None = None
        """The session of which `_measured` tells; None: several with few requests each."""
        self._readings: dict[int, LatencyCounts] = {}
        """The last one of each session, by its id."""
        self._held_back_by: tuple[int, ...] = ()
        self._told: tuple[int, ...] = ()
        """Those that the last event `objective_held_back` named; empty again once nothing holds it back."""
        labels = (domain.name, objective.service_class)
        self._p99 = metrics.objective_p99.labels(*labels)
        self._share = metrics.objective_share.labels(*labels)
        self._windows = {name: metrics.objective_windows.labels(*labels, name) for name in ("held", "missed", "idle")}
        metrics.objective_target.labels(*labels).set(objective.p99_ms / 1e3)
        self._show()

    @property
    def view(self) -> ObjectiveView:
        """The objective as commands show it."""
        p99 = self._measured.p99
        return ObjectiveView(
            self._domain.name,
            self._objective,
            self._measured.requests,
            None if p99 is None else p99 * 1e3,
            self._state.share,
            self._measured.in_force,
            self._slowest,
            self._held_back_by,
        )

    async def run(self, vault: Vault, decided: Callable[[], None]) -> None:
        """Measure and decide until cancelled; ``decided`` is called after each window."""
        while True:
            await asyncio.sleep(self._objective.window)
            self._measured = await self._measure(vault)
            self._windows[_result(self._objective, self._measured)].inc()
            self._decide()
            self._look_what_holds_back(vault)
            decided()

    async def _measure(self, vault: Vault) -> Measurement:
        """Return what happened since the last call."""
        judge = WorstSession(self._objective.least_requests)
        readings = {}
        for key in list(vault.store.sessions):
            # A session is some 0.2 ms of work, and there may be many.
            await asyncio.sleep(0)
            # Read after that: its region, or itself, may have been released meanwhile.
            record = vault.store.sessions.get(key)
            if record is None or not self._is_measured(record):
                continue
            counts = vault.store.session_fds[key].latency(record)
            if counts is None:
                continue
            readings[record.id] = counts
            if record.id in self._readings:
                judge.add(record.key, counts.after(self._readings[record.id]))
        self._readings = readings
        worst = judge.result()
        self._slowest = worst.session
        return Measurement(worst.requests, worst.p99, self._in_force())

    def _is_measured(self, record: SessionRecord) -> bool:
        client = None if record.writer is None else self._domain.clients.get(record.writer.process)
        return client is not None and client.service_class == self._objective.service_class

    def _batch(self) -> list[Client]:
        return [each for each in self._domain.clients.all() if each.service_class == self._objective.batch]

    def _in_force(self) -> float | None:
        return max((share_of(self._domain, each) for each in self._batch()), default=None)

    def _decide(self) -> None:
        objective, measured, before = self._objective, self._measured, self._state
        self._state = objective_controller.decide(objective, self._class_share, before, measured)
        self._show()
        if objective.mode == "enforce":
            self._ceilings.set(objective.batch, objective.service_class, self._state.share)
        if self._state.share != before.share:
            assert measured.p99 is not None
            self._events.publish(
                "objective_decided",
                self._domain.name,
                service_class=objective.service_class,
                batch=objective.batch,
                mode=objective.mode,
                share=self._state.share,
                before=before.share,
                p99_ms=measured.p99 * 1e3,
                target_ms=objective.p99_ms,
                requests=measured.requests,
                session=None if self._slowest is None else str(self._slowest),
            )

    def _look_what_holds_back(self, vault: Vault) -> None:
        """Find the clients of the batch class that keep more than was decided, and that no resize reaches.

        While they live, nothing lower is decided. Of sessions that could be resized and were not, another event tells.
        """
        if self._objective.mode != "enforce":
            return
        writers = [record.writer.process for record in vault.store.sessions.values() if record.writer is not None]
        known = [client for each in writers if (client := self._domain.clients.get(each)) is not None]
        resizable = {(client.user, client.program) for client in known if client.program is not None}
        self._held_back_by = tuple(
            client.process.pid
            for client in self._batch()
            if share_of(self._domain, client) > self._state.share and (client.user, client.program) not in resizable
        )
        missed = _result(self._objective, self._measured) == "missed"
        if not self._held_back_by:
            self._told = ()
        elif missed and self._held_back_by != self._told:
            self._told = self._held_back_by
            self._events.publish(
                "objective_held_back",
                self._domain.name,
                service_class=self._objective.service_class,
                batch=self._objective.batch,
                share=self._state.share,
                in_force=self._measured.in_force,
                clients=len(self._held_back_by),
                pids=self._held_back_by[:MOST_NAMED],
                detail="these clients of the batch class have no standby, so they keep their share until they end",
            )

    def _show(self) -> None:
        p99 = self._measured.p99
        self._p99.set(float("nan") if p99 is None else p99)
        self._share.set(self._state.share)


def _result(objective: Objective, measured: Measurement) -> str:
    if measured.p99 is None or measured.requests < objective.least_requests:
        return "idle"
    return "missed" if measured.p99 * 1e3 > objective.p99_ms else "held"
