"""The scenes of an upgrade: one guard ends, the next one takes everything over from the service manager.

What is in other processes is not cut here: the launcher and its lanes, which outlive a guard, and a client's end of its
sessions. The service manager is a stand-in on a thread of the test.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.model import Lifeline
from mpsguard.guard.remedies.held_lifelines import stored_name
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.tasks import beside
from mpsguard.vault.server.fd_storage.holder_client import HolderClient
from mpsguard.vault.server.fd_storage.storage import PREFIX, buffer_name
from mpsguard.vault.wire.errors import VaultError
from mpsguard.vault.wire.region import Lease, LeaseRole, RegionLayout, SessionKey
from tests.integration.transitions.bench import SIZE, Member, memory
from tests.integration.transitions.guard_scenes import House, Scenery, ready
from tests.integration.transitions.manager import Manager

_LIFELINE: Final = Lifeline(1, 1, time.monotonic(), time.monotonic() + 3600.0, uid=0)


class Service:
    """The guard as a service, with a client that has sessions, and a lifeline that is held."""

    def __init__(self, root: Path, manager: Manager, pid: int) -> None:
        self.house = House(root)
        self.manager = manager
        self._pid = pid
        self.acknowledged: dict[SessionKey, int] = {}
        """The inode of the region of each session of which the client was told that it is there."""
        self.served = False
        """Whether any guard did."""
        self._members: list[Member] = []
        manager.kept[stored_name(_LIFELINE)] = [os.memfd_create("lifeline")]

    async def serve(self, guard: Guard, session: str | None = None) -> None:
        """Run a guard, as the next one of the service, until it serves; with ``session`` a client comes by then."""
        stop = asyncio.Event()

        async def use() -> None:
            await ready(guard)
            self.served = True
            if session is not None:
                # Of the error its client is told.
                with suppress(VaultError, OSError):
                    await self._come(guard, session)
            stop.set()

        with self.manager.handing_over():
            async with beside(use()):
                await guard.run(stop)

    async def _come(self, guard: Guard, name: str) -> None:
        assert guard.vault is not None
        vault, key = guard.vault.vault, SessionKey(os.getuid(), name)
        handle = ProcessHandle.open(self._pid)
        member = Member(100 + len(self._members), handle.key)
        self._members.append(member)
        lease = Lease(member.token, handle.key, key.uid, LeaseRole.WRITER)
        await vault.attach(key, lease, handle, member.listen)
        reservation = vault.regions.reserve(key, member.token, "r", RegionLayout((SIZE,)), b"")
        chunks = memory(1)
        inode = os.fstat(chunks[0]).st_ino
        await vault.regions.register(reservation, chunks)
        self.acknowledged[key] = inode

    async def check(self) -> None:
        """Check that a guard which comes now has everything; then end the holder, to which it leaves that."""
        async with self.house.guard() as guard:
            stop = asyncio.Event()
            with self.manager.handing_over():
                async with beside(guard.run(stop), ready(guard)) as (serving, serves):
                    await asyncio.wait({serving, serves}, return_when=asyncio.FIRST_COMPLETED)
                    if serving.done():
                        serving.result()
                    assert not any(event.kind == "internal_error" for event in guard.events.recent())
                    await self._check(guard)
                    stop.set()
                    await serving
        holder = await HolderClient.open(self.house.root / "run" / "holder")
        await holder.leave()
        await holder.close()

    async def _check(self, guard: Guard) -> None:
        assert guard.vault is not None
        assert not guard.vault.lost
        assert not guard.vault.unreadable
        assert guard.vault._background_storage is not None
        await guard.vault._background_storage.settle()
        store = guard.vault.vault.store
        for key, inode in self.acknowledged.items():
            assert key in store.sessions, f"{key} is lost"
            session, fds = store.sessions[key], store.session_fds[key]
            assert session.writer is not None, f"the writer of {key} is lost"
            assert [os.fstat(fd).st_ino for fd in fds.chunks[session.regions["r"].id]] == [inode]
        for session in store.sessions.values():
            for lease in session.leases:
                assert guard.vault.vault._leases.has(lease.token), "a lease without a holder"
        spares = {
            buffer_name(session.id, generation)
            for session in store.sessions.values()
            for generation in (session.generation, session.generation + 1)
        }
        kept = {name for name in self.manager.kept if name.startswith(PREFIX)}
        assert set(store.contents()) <= kept
        assert kept <= set(store.contents()) | spares, kept
        assert guard.pipeline is not None
        assert [each.process for each in guard.pipeline.sensors.lifelines.held()] == [_LIFELINE.process]
        if self.served:
            assert guard.domain(None).sockets_held, "clients that came while no guard ran are lost"
        public = self.house.root / "mps" / "control"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, str(public))


Play = Callable[[Service], Scenery]


async def upgrading(service: Service) -> Scenery:
    async with service.house.guard() as old, service.house.guard() as new:
        await service.serve(old, "before")
        # It takes over, serves, and ends, for the one that checks.
        yield service.serve(new, "after")
    await service.check()


PLAYS: list[Play] = [upgrading]
