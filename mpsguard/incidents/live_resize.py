"""Live resize: a session goes on with another share of the SMs, in a standby that was started with it.

A server takes a client's share when the client connects, so a process keeps the share with which it began. A session
with a standby needs not: the share of its program is changed, its standby is replaced by one that comes with the new
share, and that one takes over by plan.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from mpsguard.broker.class_ceilings import ClassCeilings
from mpsguard.broker.program_shares import ProgramShare, ProgramShares
from mpsguard.control_api.event_stream import EventStream
from mpsguard.control_api.messages.resize import Resized
from mpsguard.incidents.domain_view import DomainView
from mpsguard.incidents.failover import Failover
from mpsguard.model import Client
from mpsguard.vault.errors import VaultError
from mpsguard.vault.region import LeaseRole, SessionKey, SessionRecord
from mpsguard.vault.vault import Vault


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

    async def resize(self, vault: Vault, key: SessionKey, share: float) -> Resized:
        """Give a session another share, and return when it has it.

        That takes as long as a standby of it takes to start. If the caller gives up, the share holds for the program's
        processes that come, and the same call again goes on where this one ended.

        Raises:
            ResizeError: it cannot be resized, or its standby could not take over.
        """
        record = _record(vault, key)
        domain, writer = self._writer(record)
        _check_share(domain, writer, share, self._ceilings[domain.name])
        assert writer.program is not None
        living = {(client.uid, client.program) for client in domain.clients.all()}
        try:
            self._shares[domain.name].set(ProgramShare(writer.uid, writer.program, share), living)
        except OSError as error:
            raise ResizeError(f"the share cannot be written down: {error.strerror}") from None
        heir = await self._heir(vault, domain, record, share)
        failure = await self._failover.switch_over(domain, key, heir.process)
        if failure is not None:
            raise ResizeError(failure)
        self._events.publish(
            "session_resized",
            domain.name,
            session=str(key),
            share=share,
            before=writer.sm_share,
            pid=heir.process.pid,
            service_class=heir.service_class,
        )
        return Resized(key, share, writer.sm_share, heir.process.pid)

    async def _heir(self, vault: Vault, domain: DomainView, record: SessionRecord, share: float) -> Client:
        """Wait for a ready standby with that share; those with another one are dismissed, and end."""
        since = time.time()
        while True:
            standbys = _standbys(domain, record)
            heir = next((each.client for each in standbys if each.ready and each.client.sm_share == share), None)
            if heir is not None:
                return heir
            for each in standbys:
                if each.client.sm_share == share:
                    continue
                if each.client.connected_at > since:
                    # Another one would fare no better.
                    raise ResizeError(
                        f"process {each.client.process.pid} came without the share; see event class_not_applied"
                    )
                with suppress(VaultError):
                    vault.dismiss(record.key, each.token)
            await vault.store.changed(record.key)
            record = _record(vault, record.key)

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


def _check_share(domain: DomainView, writer: Client, share: float, ceilings: ClassCeilings) -> None:
    ceiling = ceilings.of(writer.service_class)
    if ceiling is not None and share > ceiling:
        raise ResizeError(
            f"{share:g} % is more than an objective leaves to class {writer.service_class} now: {ceiling:g} % at most"
        )
    most = domain.class_share(writer.service_class)
    if most is not None and share > most:
        raise ResizeError(f"{share:g} % is more than class {writer.service_class} gives: {most:g} % at most")


def _standbys(domain: DomainView, record: SessionRecord) -> list[_Standby]:
    """Return the standbys of a session that are clients."""
    found = []
    for lease in record.readers:
        client = domain.clients.get(lease.process)
        if client is not None and lease.role is LeaseRole.STANDBY:
            found.append(_Standby(client, lease.token, lease.ready))
    return found
