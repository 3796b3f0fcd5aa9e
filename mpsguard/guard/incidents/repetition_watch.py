"""Repetition watch: takes what clients say of lost work that they repeat alone (docs/concepts/repetition.md).

It is each client's word about itself, taken once: that it has begun, and what became of it.
"""

import time
from collections.abc import Callable
from typing import Final

from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.evidence import WorkRepeated
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.guard.model import Client
from mpsguard.guard.triage.repetitions import LONGEST
from mpsguard.linux.identity import ProcessKey
from mpsguard.preload.second_claim import RepetitionState

_LINES: Final = 1.0
"""Seconds after it within which the kernel's lines on it have come."""
_AFTER_FAULT: Final = 90.0
"""Seconds after a lane's fault for which any client of it is believed to be outside of MPS. A program with work in
flight meets the fault within moments; many processes of a stranger could say one after another that they repeat."""


class RepetitionWatch:
    """Owns what clients of one domain have said of their repetitions."""

    def __init__(
        self,
        domain: DomainView,
        observe: Callable[[Client, WorkRepeated], None],
        *,
        events: EventStream,
        metrics: Metrics,
    ) -> None:
        """``observe`` takes each word as evidence."""
        self._domain = domain
        self._observe = observe
        self._events = events
        self._metrics = metrics
        self._told: dict[ProcessKey, RepetitionState] = {}
        self._again: set[ProcessKey] = set()
        """Clients that have gone over since their word: they may begin another repetition, after another fault."""

    def said(self, client: Client, word: RepetitionState, *, lost_at: float | None) -> None:
        """Take a client's word.

        ``lost_at``: when the fault was seen that it lost its work by, on the monotonic clock; None: there is no such
        work.
        """
        if client.process in self._again and word in (RepetitionState.NONE, RepetitionState.UNDER_WAY):
            self._again.discard(client.process)
            self._told.pop(client.process, None)
        if self._take(client, word, self._told.get(client.process, RepetitionState.NONE), lost_at=lost_at):
            self._told[client.process] = word

    def again(self, process: ProcessKey) -> None:
        """Let a client say what becomes of another repetition: it has gone over."""
        if process in self._told:
            self._again.add(process)

    def forget(self, process: ProcessKey) -> RepetitionState:
        """Forget a client that has ended, and return its word so far."""
        self._again.discard(process)
        return self._told.pop(process, RepetitionState.NONE)

    def last(self, client: Client, word: RepetitionState, before: RepetitionState, *, lost_at: float | None) -> None:
        """Take the last word of a client that is forgotten; ``before``: the one before that."""
        self._take(client, word, before, lost_at=lost_at)

    def _take(self, client: Client, word: RepetitionState, before: RepetitionState, *, lost_at: float | None) -> bool:
        """Take a word if it is news, and may be true."""
        if word <= before or before > RepetitionState.UNDER_WAY or (lost_at is None and not before):
            return False
        process, now = client.process, time.monotonic()
        for over in [each for each, until in self._domain.alone.items() if until < now]:
            del self._domain.alone[over]
        name, outcome = self._domain.name, word.name.lower()
        told = {"pid": process.pid, "start_ticks": process.start_ticks, "lane": client.lane}
        # Of one that works again, or has gone over, no more than what it was believed before.
        most = self._domain.alone.get(process, now) if lost_at is None else lost_at + _AFTER_FAULT
        self._domain.alone[process] = min(most, now + (LONGEST if word is RepetitionState.UNDER_WAY else _LINES))
        if word is RepetitionState.UNDER_WAY:
            self._events.publish("client_repeats_alone", name, user=client.user, **told)
        else:
            self._metrics.repetitions.labels(name, outcome).inc()
            self._events.publish("client_repeated_alone", name, user=client.user, **told, outcome=outcome)
        self._observe(client, WorkRepeated(outcome))
        return True
