"""Carries takeovers out: fences the writers on a lane that will not live, and promotes their standbys elsewhere."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from mpsguard.control_api.event_stream import EventStream
from mpsguard.control_api.messages.move import Switchover
from mpsguard.evidence import Evidence, UvmFault, Xid
from mpsguard.incidents.domain_view import DomainView
from mpsguard.lanes.lane import Lane
from mpsguard.linux import nvidia_gpus
from mpsguard.metrics.registry import Metrics
from mpsguard.remedies import takeover
from mpsguard.remedies.takeover import LaneView, Takeover
from mpsguard.sensors import kmod
from mpsguard.tasks import TaskSet
from mpsguard.vault.errors import VaultError
from mpsguard.vault.region import SessionKey
from mpsguard.vault.vault import Vault

_AFTERSHOCKS: Final = 2.0
"""Seconds after a takeover in which an Xid that names no process is taken for another line of the same fault."""


class _Leaving(msgspec.Struct, frozen=True):
    lane: str
    to: str | None
    taken: tuple[Takeover, ...]
    left: tuple[SessionKey, ...]
    why: str
    sign: Evidence | None


class Failover:
    """Watches the evidence for lanes that have sessions. All in one event loop."""

    def __init__(self, domains: Mapping[str, DomainView], events: EventStream, metrics: Metrics) -> None:
        self._domains = [domain for domain in domains.values() if domain.lanes.spare is not None]
        self._events = events
        self._metrics = metrics
        self._vault: Vault | None = None
        self._tasks = TaskSet()
        self._last = float("-inf")
        addresses = nvidia_gpus.pci_addresses()
        self._gpus = {domain.name: _on_which(domain.settings.gpus, addresses) for domain in self._domains}

    def watch(self, vault: Vault | None) -> None:
        """Begin, with the vault's sessions; before this, and without a vault, nothing is taken over."""
        self._vault = vault

    def act_on(self, evidence: Evidence) -> "asyncio.Task[Switchover] | None":
        """Fail over if the evidence says that a lane will not live; return the switchover under way, if one is."""
        if self._vault is None or not self._domains:
            return None
        what = evidence.what
        # Before the views of the lanes are made: nearly all evidence is of other kinds.
        if not isinstance(what, takeover.SIGNS):
            return None
        nameless = isinstance(what, Xid) and what.pid is None
        if nameless and evidence.observed_at - self._last < _AFTERSHOCKS:
            return None
        waiting = takeover.waiting(self._vault.stock.sessions.values())
        contained = isinstance(what, UvmFault) and kmod.contains()
        name = takeover.struck(evidence, self._views(), waiting, contained=contained)
        domain = next((domain for domain in self._domains if name and domain.lanes.named(name)), None)
        if domain is None or name is None:
            return None
        task = self._leave(domain, name, f"{evidence.source}: {what.__struct_config__.tag}", evidence)
        if task is not None:
            self._tasks.add(task)
        return task

    async def move(self, domain: DomainView) -> Switchover:
        """Leave the active lane by an operator's wish: every session with a ready standby goes on there."""
        lane = domain.lanes.active.spec.name
        task = self._leave(domain, lane, "an operator said so", None)
        return await task if task is not None else Switchover(lane, None, (), ())

    async def close(self) -> None:
        """Let what is under way finish: it takes no longer than the vault's keeper."""
        await self._tasks.settle()

    def _leave(
        self, domain: DomainView, name: str, why: str, sign: Evidence | None
    ) -> "asyncio.Task[Switchover] | None":
        assert self._vault is not None
        places = {client.process: client.lane for client in domain.clients.all()}
        sessions = list(self._vault.stock.sessions.values())
        taken, left = takeover.takeovers(name, sessions, places.get)
        task = None
        if taken or left:
            self._last = time.monotonic()
            # Before anything is awaited: nothing that the old writers do from here on counts.
            for each in taken:
                self._vault.fence(each.session)
            to = next((place for each in taken if (place := places.get(each.heir)) is not None), None)
            task = asyncio.create_task(self._promote(domain, _Leaving(name, to, taken, left, why, sign)))
        if sign is not None:
            domain.lanes.strike(client for client, place in places.items() if place == name)
            # Behind the promotions: nobody waits for this.
            stranded = takeover.stranded(name, sessions, places.get)
            asyncio.get_running_loop().call_soon(self._dismiss, domain.name, name, stranded)
        return task

    def _dismiss(self, domain: str, lane: str, stranded: tuple[tuple[SessionKey, int], ...]) -> None:
        assert self._vault is not None
        for key, token in stranded:
            with suppress(VaultError):
                self._vault.dismiss(key, token)
                self._events.publish("standby_stranded", domain, session=str(key), lane=lane)

    async def _promote(self, domain: DomainView, leaving: "_Leaving") -> Switchover:
        told = await asyncio.gather(*(self._promote_one(each) for each in leaving.taken))
        done = time.monotonic()
        name, to, why, sign = leaving.lane, leaving.to, leaving.why, leaving.sign
        unsaved = None
        if to is not None and domain.lanes.move_to(to):
            self._events.publish("lanes_changed_places", domain.name, lane=to, was=name, why=why)
            unsaved = self._save(domain)
        for each, trouble in zip(leaving.taken, told, strict=True):
            outcome = "done" if trouble is None else "failed"
            self._metrics.takeovers.labels(domain.name, outcome).inc()
            self._events.publish(
                "takeover",
                domain.name,
                session=str(each.session),
                outcome=outcome,
                detail=trouble or "",
                generation=each.generation,
                writer=each.writer.pid,
                heir=each.heir.pid,
                lane=name,
                to=to,
                why=why,
                # From the sign's own time, as far as its source tells it.
                seconds=None if sign is None else round(done - (sign.happened_at or sign.observed_at), 6),
            )
        for key in leaving.left:
            self._metrics.takeovers.labels(domain.name, "no_standby").inc()
            self._events.publish("takeover", domain.name, session=str(key), outcome="no_standby", lane=name, why=why)
        moved = tuple(each.session for each, trouble in zip(leaving.taken, told, strict=True) if trouble is None)
        failed = tuple(each.session for each in leaving.taken if each.session not in moved)
        return Switchover(name, to if moved else None, moved, (*leaving.left, *failed), unsaved)

    def _save(self, domain: DomainView) -> str | None:
        """None, or why the next guard will not know where the work is. That stops no takeover."""
        try:
            domain.lanes.save()
        except OSError as error:
            self._events.publish(
                "active_lane_not_saved", domain.name, lane=domain.lanes.active.spec.name, detail=str(error)
            )
            return str(error)
        return None

    async def _promote_one(self, each: Takeover) -> str | None:
        """None, or why it could not be; then the vault looks for another heir as soon as one is ready."""
        assert self._vault is not None
        try:
            await self._vault.promote(each.session, each.token)
        except VaultError as error:
            return str(error)
        return None

    def _views(self) -> list[LaneView]:
        return [self._view(domain, lane) for domain in self._domains for lane in domain.lanes.all]

    def _view(self, domain: DomainView, lane: Lane) -> LaneView:
        name = lane.spec.name
        return LaneView(
            name=name,
            servers=frozenset(server.process.pid for server in lane.report.servers),
            clients=frozenset(client.process for client in domain.clients.all() if client.lane == name),
            gpus=self._gpus[domain.name],
        )


def _on_which(gpus: tuple[str, ...], addresses: Mapping[str, str]) -> frozenset[str] | None:
    """The PCI addresses of a domain's GPUs; None if they are not all named by UUID."""
    found = [addresses.get(gpu) for gpu in gpus]
    return None if None in found else frozenset(address for address in found if address is not None)
