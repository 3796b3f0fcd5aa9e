"""Live resize: a session goes on with another share of the SMs, in a standby that was started with it.

A server takes a client's share when the client connects, so a process keeps the share with which it began. A session
with a standby needs not: the share of its program is changed, its standby is replaced by one that comes with the new
share, and that one takes over by plan.

That one starts on the active lane, where the session's process is: a share protects the clients of its own lane alone,
because two lanes have the GPU in time slices. So from its start to the switchover one fault ends both.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from mpsguard.guard.broker.lowered_shares import ClassCeilings, ProgramShare, ProgramShares, TrialError
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.control_api.messages.vault import Resized
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.incidents.failover import Failover
from mpsguard.guard.model import Client
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.tasks import Owner, finish
from mpsguard.vault.server import transitions
from mpsguard.vault.server.vault import Vault
from mpsguard.vault.wire.errors import VaultError
from mpsguard.vault.wire.region import LeaseRole, SessionKey, SessionRecord

_MOST_REPLACED: Final = 3
"""Standbys of a session that are replaced at most because a resize failed: each costs a start of the program."""

_MOST_WITHOUT: Final = 1
"""Standbys that may come without the share: one that was on its way when the share changed, or of which the guard could
not read in time which program it belongs to. A second one means that another would fare no better."""


class ResizeError(Exception):
    """A session cannot be resized; one line says why."""


class _Standby(NamedTuple):
    client: Client
    token: int
    """Of its lease."""
    ready: bool


class LiveResize:
    """Changes the share of running sessions."""

    def __init__(
        self,
        domains: Mapping[str, DomainView],
        shares: Mapping[str, ProgramShares],
        ceilings: Mapping[str, ClassCeilings],
        failover: Failover,
        events: EventStream,
    ) -> None:
        """``shares`` and ``ceilings``: each domain's."""
        self._domains = domains
        self._shares = shares
        self._ceilings = ceilings
        self._failover = failover
        self._events = events
        self._guarding = Owner()

    async def resize(self, vault: Vault, key: SessionKey, share: float) -> Resized:
        """Give a session another share, and return when it has it.

        That takes as long as a standby of it takes to start. If it fails, or the caller gives up before the switchover,
        the program's processes that come have the share of before. A switchover that has begun is finished.

        Raises:
            ResizeError: it cannot be resized, or its standby could not take over.
        """
        record = _record(vault, key)
        domain, writer = self._writer(record)
        assert writer.program is not None
        if why := share_refusal(domain, writer.service_class, share, self._ceilings[domain.name]):
            raise ResizeError(why)
        shares = self._shares[domain.name]
        before = shares.of(writer.user, writer.program)
        wanted = ProgramShare(writer.user, writer.program, share)

        def put_back() -> None:
            assert writer.program is not None
            shares.put_back(writer.user, writer.program, before)
            self._guarding.spawn(self._guard(vault, domain, key, tried=share))

        try:
            with shares.trial(wanted):
                candidate = await self._candidate(vault, domain, record, writer, share)
                living = {(client.user, client.program) for client in domain.clients.all()}
                shares.set(wanted, living)
        except TrialError as error:
            raise ResizeError(f"{key}: {error}") from None
        except BaseException as error:
            put_back()
            if isinstance(error, OSError):
                raise ResizeError(f"the share cannot be written down: {error.strerror}") from None
            raise
        # No trial any more: the standby that is started now belongs on the other lane.
        if candidate.process != writer.process:
            # From here on it is not broken off: the writer would be fenced, and nothing said of its successor.
            await finish(self._take_over(vault, domain, key, writer=writer, candidate=candidate, put_back=put_back))
        return Resized(key, share, writer.sm_share, candidate.process.pid)

    async def _take_over(
        self,
        vault: Vault,
        domain: DomainView,
        key: SessionKey,
        *,
        writer: Client,
        candidate: Client,
        put_back: Callable[[], None],
    ) -> None:
        """Let a standby with another share go on with a session; ``put_back``: called if it cannot."""
        try:
            await self._switch_over(domain, _record(vault, key), candidate)
        except BaseException:
            put_back()
            raise
        self._events.publish(
            "session_resized",
            domain.name,
            session=str(key),
            share=candidate.sm_share,
            before=writer.sm_share,
            pid=candidate.process.pid,
            service_class=candidate.service_class,
        )

    def resume(self, vault: Vault) -> None:
        """Give each session a standby on another lane than its own, if a guard ended while it resized one."""
        for record in vault.store.sessions.values():
            with suppress(ResizeError):
                domain, _ = self._writer(record)
                self._guarding.spawn(self._guard(vault, domain, record.key, tried=None))

    async def close(self) -> None:
        """End what still runs; every standby stays where it is."""
        await self._guarding.end()

    async def _switch_over(self, domain: DomainView, record: SessionRecord, candidate: Client) -> None:
        if record.writer is not None and record.writer.process == candidate.process:
            # The process before it has ended by itself meanwhile, and the vault has promoted the standby.
            return
        failure = await self._failover.switch_over(domain, record.key, candidate.process)
        if failure is not None:
            raise ResizeError(failure)

    async def _candidate(
        self, vault: Vault, domain: DomainView, record: SessionRecord, writer: Client, share: float
    ) -> Client:
        """Wait for a ready standby with that share on the active lane; others are dismissed, and end.

        Returns the writer if nothing is left to be done.
        """
        since = time.time()
        without: set[ProcessKey] = set()
        while True:
            standbys = _standbys(domain, record)
            if _has(domain, writer, share) and all(each.client.sm_share == share for each in standbys):
                return writer
            candidate = next(
                (each.client for each in standbys if each.ready and _has(domain, each.client, share)), None
            )
            if candidate is not None:
                return candidate
            for each in standbys:
                if _has(domain, each.client, share):
                    continue
                if each.client.connected_at > since and each.client.sm_share != share:
                    without.add(each.client.process)
                if len(without) > _MOST_WITHOUT:
                    raise ResizeError(
                        f"process {each.client.process.pid} came without the share; see event class_not_applied"
                    )
                with suppress(VaultError):
                    vault.dismiss(record.key, each.token)
            record = await self._changed(vault, record.key)
            if record.writer is None or record.writer.process != writer.process:
                return self._successor(domain, record, writer.process, share)

    async def _changed(self, vault: Vault, key: SessionKey) -> SessionRecord:
        """Return a session once it has changed, and no promotion of it is under way."""
        while True:
            await vault.store.changed(key)
            record = _record(vault, key)
            if transitions.candidate(record) is None:
                return record

    def _successor(self, domain: DomainView, record: SessionRecord, before: ProcessKey, share: float) -> Client:
        """Return the process that writes a session now, without a plan, if it is the one that was waited for."""
        client = None if record.writer is None else domain.clients.get(record.writer.process)
        if client is None or not _has(domain, client, share):
            raise ResizeError(f"{record.key}: process {before.pid} ended while its successor started")
        return client

    async def _guard(self, vault: Vault, domain: DomainView, key: SessionKey, *, tried: float | None) -> None:
        """Replace standbys that a resize has left behind, until there is a ready one on another lane.

        ``tried``: the share that standbys have which came during that resize.
        """
        replaced = 0
        while replaced < _MOST_REPLACED:
            record = vault.store.sessions.get(key)
            if record is None:
                return
            writer = None if record.writer is None else domain.clients.get(record.writer.process)
            if writer is not None:
                if self._shares[domain.name].on_trial(writer.user, writer.program):
                    return
                for each in _standbys(domain, record):
                    came_for_it = tried is not None and each.client.sm_share == tried != writer.sm_share
                    left = came_for_it or each.client.lane == writer.lane
                    if not left and each.ready:
                        return
                    if left:
                        with suppress(VaultError):
                            vault.dismiss(key, each.token)
                        replaced += 1
            # Always a change that is still to come: what is dismissed here is no standby any more.
            await vault.store.changed(key)

    def _writer(self, record: SessionRecord) -> tuple[DomainView, Client]:
        """Return the client that writes a session, and its domain."""
        if record.writer is None:
            raise ResizeError(f"{record.key}: no process writes it now")
        for domain in self._domains.values():
            client = domain.clients.get(record.writer.process)
            if client is None:
                continue
            if not domain.settings.classes:
                raise ResizeError(f"domain {domain.name!r} has no service classes, without which no share is set")
            if domain.lanes.spare is None:
                raise ResizeError(f"domain {domain.name!r} has no lane for standbys (standby = true)")
            if client.program is None:
                raise ResizeError(
                    f"{record.key}: process {client.process.pid} does not run under mpsguard run --standby"
                )
            return domain, client
        raise ResizeError(f"{record.key}: process {record.writer.process.pid} is no client of this guard")


def _record(vault: Vault, key: SessionKey) -> SessionRecord:
    try:
        return vault.store.session(key)
    except VaultError as error:
        raise ResizeError(str(error)) from None


def share_refusal(domain: DomainView, service_class: str | None, share: float, ceilings: ClassCeilings) -> str:
    """Return why a client of a class cannot have a share; "" if it can."""
    ceiling, most = ceilings.of(service_class), domain.class_share(service_class)
    if ceiling is not None and share > ceiling:
        return f"{share:g} % is more than an objective leaves to class {service_class} now: {ceiling:g} % at most"
    if most is not None and share > most:
        return f"{share:g} % is more than class {service_class} gives: {most:g} % at most"
    return ""


def _has(domain: DomainView, client: Client, share: float) -> bool:
    """Return whether a client has a share where it counts: on the active lane."""
    return client.sm_share == share and client.lane == domain.lanes.active.spec.name


def _standbys(domain: DomainView, record: SessionRecord) -> list[_Standby]:
    """Return the standbys of a session that are clients."""
    found = []
    for lease in record.readers:
        client = domain.clients.get(lease.process)
        if client is not None and lease.role is LeaseRole.STANDBY:
            found.append(_Standby(client, lease.token, lease.ready))
    return found
