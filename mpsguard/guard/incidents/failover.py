"""Failover: fences the writers on a lane that is lost, and promotes their standbys on another lane."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.control_api.messages.lanes import Switchover
from mpsguard.guard.evidence import Evidence, UvmFault, Xid
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.guard.model import Client
from mpsguard.guard.remedies import takeover
from mpsguard.guard.remedies.takeover import LaneView, SessionFailover
from mpsguard.guard.sensors import kmod
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.tasks import Owner
from mpsguard.vault.server.vault import Vault
from mpsguard.vault.wire.errors import VaultError
from mpsguard.vault.wire.region import SessionKey

_AFTERSHOCKS: Final = 2.0
"""Seconds after a failover in which an Xid that names no process counts as another line of the same fault."""


class _Departure(msgspec.Struct, frozen=True):
    """The failovers of all sessions of one lane."""

    lane: str
    to: str | None
    failovers: tuple[SessionFailover, ...]
    left: tuple[SessionKey, ...]
    """Sessions without a ready standby elsewhere."""
    why: str
    sign: Evidence | None
    """None for an operator's switchover."""


class Failover:
    """Acts on evidence of the loss of a lane with sessions. All in one event loop."""

    def __init__(self, domains: Mapping[str, DomainView], events: EventStream, metrics: Metrics) -> None:
        self._domains = [domain for domain in domains.values() if domain.lanes.spare is not None]
        self._events = events
        self._metrics = metrics
        self._vault: Vault | None = None
        self._tasks = Owner()
        self._last = float("-inf")

    def watch(self, vault: Vault | None) -> None:
        """Begin, with the vault's sessions; before this, and without a vault, evidence is ignored."""
        self._vault = vault

    def act_on(self, evidence: Evidence) -> "asyncio.Task[Switchover] | None":
        """Fail over if the evidence says that a lane will not live; return the switchover under way, if one is."""
        if self._vault is None or not self._domains:
            return None
        what = evidence.what
        # Before the views of the lanes are built: nearly all evidence is of other kinds.
        if not isinstance(what, takeover.SIGNS):
            return None
        nameless = isinstance(what, Xid) and what.pid is None
        if nameless and evidence.observed_at - self._last < _AFTERSHOCKS:
            return None
        waiting = takeover.waiting(self._vault.store.sessions.values())
        contained = isinstance(what, UvmFault) and kmod.contains()
        alone = any(domain.any_alone for domain in self._domains)
        name = takeover.lost_lane(evidence, self._views(), waiting, contained=contained, alone=alone)
        domain = next((domain for domain in self._domains if name and domain.lanes.named(name)), None)
        if domain is None or name is None:
            return None
        return self._leave(domain, name, f"{evidence.source}: {what.__struct_config__.tag}", evidence)

    async def move(self, domain: DomainView) -> Switchover:
        """Switch over from the active lane on an operator's request: promote every ready standby elsewhere.

        If the caller is cancelled, what has begun goes on; the event ``takeover`` tells its outcome.
        """
        lane = domain.lanes.active.spec.name
        task = self._leave(domain, lane, "an operator said so", None)
        return await asyncio.shield(task) if task is not None else Switchover(lane, None, (), ())

    async def switch_over(self, domain: DomainView, session: SessionKey, candidate: ProcessKey) -> str | None:
        """Let one session go on in a ready standby of it; the lanes keep their places.

        Return why that failed, or None. If the caller is cancelled, what has begun goes on.
        """
        assert self._vault is not None
        record = self._vault.store.sessions.get(session)
        lease = None if record is None else next((each for each in record.leases if each.process == candidate), None)
        if record is None or record.writer is None or lease is None:
            return f"{session} has changed meanwhile"
        places = {client.process: client.lane for client in domain.clients.all()}
        failover = SessionFailover(session, record.generation, record.writer.process, candidate, lease.token)
        lane = places.get(record.writer.process) or domain.lanes.active.spec.name
        self._vault.fence(session)
        departure = _Departure(lane, places.get(candidate), (failover,), (), "an operator said so", None)
        result = await asyncio.shield(self._tasks.spawn(self._promote(domain, departure, moves_lane=False)))
        return None if result.moved else f"{session} could not be promoted; see event takeover"

    async def close(self) -> None:
        """Wait for running failovers, which are bounded by the deadlines of the vault's descriptor storage."""
        await self._tasks.settle()

    def _leave(
        self, domain: DomainView, name: str, why: str, sign: Evidence | None
    ) -> "asyncio.Task[Switchover] | None":
        assert self._vault is not None
        places = {client.process: client.lane for client in domain.clients.all()}
        sessions = list(self._vault.store.sessions.values())
        failovers, left = takeover.session_failovers(name, sessions, places.get)
        task = None
        if failovers or left:
            self._last = time.monotonic()
            # Before the first await: from here on, the old writers change nothing.
            for each in failovers:
                self._vault.fence(each.session)
            to = next((place for each in failovers if (place := places.get(each.candidate)) is not None), None)
            task = self._tasks.spawn(self._promote(domain, _Departure(name, to, failovers, left, why, sign)))
        if sign is not None:
            domain.lanes.strike(client for client, place in places.items() if place == name)
            # After the promotions, which are urgent; this is not.
            stranded = takeover.stranded(name, sessions, places.get)
            asyncio.get_running_loop().call_soon(self._dismiss, domain.name, name, stranded)
        return task

    def _dismiss(self, domain: str, lane: str, stranded: tuple[tuple[SessionKey, int], ...]) -> None:
        assert self._vault is not None
        for key, token in stranded:
            with suppress(VaultError):
                self._vault.dismiss(key, token)
                self._events.publish("standby_stranded", domain, session=str(key), lane=lane)

    async def _promote(self, domain: DomainView, departure: "_Departure", *, moves_lane: bool = True) -> Switchover:
        """Promote; ``moves_lane``: other new clients go where the sessions went."""
        failures = await asyncio.gather(*(self._promote_one(each) for each in departure.failovers))
        done = time.monotonic()
        name, to, why, sign = departure.lane, departure.to, departure.why, departure.sign
        unsaved = domain.move_to(to, name, why, self._events) if moves_lane and to is not None else None
        for each, failure in zip(departure.failovers, failures, strict=True):
            outcome = "done" if failure is None else "failed"
            self._metrics.failovers.labels(domain.name, outcome).inc()
            self._events.publish(
                "takeover",
                domain.name,
                session=str(each.session),
                outcome=outcome,
                detail=failure or "",
                generation=each.generation,
                writer=each.writer.pid,
                heir=each.candidate.pid,
                lane=name,
                to=to,
                why=why,
                # From the time that the sign's source gives, if it gives one.
                seconds=None if sign is None else round(done - (sign.happened_at or sign.observed_at), 6),
            )
        for key in departure.left:
            self._metrics.failovers.labels(domain.name, "no_standby").inc()
            self._events.publish("takeover", domain.name, session=str(key), outcome="no_standby", lane=name, why=why)
        moved = tuple(
            each.session for each, failure in zip(departure.failovers, failures, strict=True) if failure is None
        )
        failed = tuple(each.session for each in departure.failovers if each.session not in moved)
        return Switchover(name, to if moved else None, moved, (*departure.left, *failed), unsaved)

    async def _promote_one(self, each: SessionFailover) -> str | None:
        """Promote one standby. Return why that failed, or None; after a failure, the vault promotes the next one."""
        assert self._vault is not None
        try:
            await self._vault.promote(each.session, each.token)
        except VaultError as error:
            return str(error)
        return None

    def _views(self) -> list[LaneView]:
        return [view_of(domain, lane) for domain in self._domains for lane in domain.lanes.all]


def view_of(domain: DomainView, lane: Lane) -> LaneView:
    """Return the facts about a lane that decisions need."""
    name = lane.spec.name
    clients = [each for each in domain.clients.all() if each.lane == name and not domain.is_alone(each.process)]
    return LaneView(
        name=name,
        servers=frozenset(server.process.pid for server in lane.report.servers),
        clients=frozenset(client.process for client in clients),
        gpus=domain.addresses,
        astride=frozenset(client.process for client in clients if _is_astride(client)),
    )


def _is_astride(client: Client) -> bool:
    # One that went over has left a dead server behind, and one that moved a context, until the lane lists it no more.
    other = client.second_lane or (client.lane_before if client.moved_at is not None else None)
    return other is not None and other != client.lane
