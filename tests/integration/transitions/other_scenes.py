"""The scenes without sessions: storages, processes, levers, images in memory, admission, reload."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final

from mpsguard.guard.broker.admission import Admission
from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.lanes.command import Command, CommandReply
from mpsguard.guard.lanes.levers import Levers, ServerLevers
from mpsguard.guard.remedies.termination import TerminationPlan, terminate
from mpsguard.images.pool.metrics import PoolMetrics
from mpsguard.images.pool.tier_owner import TierOwner
from mpsguard.images.pool.tiers import Tier
from mpsguard.linux.descriptors import fd_bundle
from mpsguard.linux.identity import Credentials
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.vault.server.fd_storage.holder_client import HolderClient
from mpsguard.vault.server.fd_storage.storage import FdStorage
from mpsguard.vault.server.fd_storage.systemd_store import SystemdStore
from mpsguard.vault.wire.errors import UnavailableError
from tests.harness.waiting import until
from tests.integration.transitions.bench import Uninterested, memory
from tests.integration.transitions.interruption import Operation
from tests.integration.transitions.manager import Manager
from tests.unit.guard.lanes.test_levers import Daemon
from tests.unit.guard.remedies.lanes import ScriptedLane

Scenery = AsyncGenerator[Operation, Exception | None]
_NAMES: Final = ("mgv-r1", "mgv-r2")


class Place:
    """Where a scene plays: a directory, a process, and a service manager."""

    def __init__(self, root: Path, pid: int, manager: Manager) -> None:
        self.root = root
        self.pid = pid
        self.manager = manager


Play = Callable[[Place], Scenery]


async def keep(storage: FdStorage, name: str) -> None:
    """Store a bundle, as `BackgroundStorage` does."""
    fds = memory(1)
    try:
        try:
            bundle = fd_bundle.pack(name.encode(), fds)
        except OSError as error:
            raise UnavailableError(str(error)) from None
        await storage.keep(name, bundle)
    finally:
        os.close(fds[0])


async def held_by(storage: HolderClient) -> list[str]:
    found = await storage.list()
    for sock in found.values():
        sock.close()
    return sorted(found)


async def keeping_in_a_holder(place: Place) -> Scenery:
    storage = await HolderClient.open(place.root / "holder")
    await keep(storage, _NAMES[0])
    failed = yield keep(storage, _NAMES[1])
    await storage.forget(_NAMES[1])
    # The next request gets its own answer, on a new connection if need be.
    assert await held_by(storage) == [_NAMES[0]]
    assert failed is None or isinstance(failed, UnavailableError)
    await storage.leave()
    await storage.close()


async def forgetting_in_a_holder(place: Place) -> Scenery:
    storage = await HolderClient.open(place.root / "holder")
    for name in _NAMES:
        await keep(storage, name)
    yield storage.forget(_NAMES[1])
    await storage.forget(_NAMES[1])
    assert await held_by(storage) == [_NAMES[0]]
    await storage.leave()
    await storage.close()


async def listing_a_holder(place: Place) -> Scenery:
    storage = await HolderClient.open(place.root / "holder")
    for name in _NAMES:
        await keep(storage, name)
    yield held_by(storage)
    assert await held_by(storage) == list(_NAMES)
    await storage.leave()
    await storage.close()


async def keeping_in_the_service_manager(place: Place) -> Scenery:
    with place.manager.in_place():
        storage = SystemdStore()
        yield keep(storage, _NAMES[0])
        await storage.forget(_NAMES[0])
        await keep(storage, _NAMES[1])
        assert list(place.manager.kept) == [_NAMES[1]]
        await storage.forget(_NAMES[1])
        await until(lambda: not place.manager.kept)


async def forgetting_in_the_service_manager(place: Place) -> Scenery:
    with place.manager.in_place():
        storage = SystemdStore()
        await keep(storage, _NAMES[0])
        yield storage.forget(_NAMES[0])
        await storage.forget(_NAMES[0])
        await until(lambda: not place.manager.kept)


async def reading_a_process(place: Place) -> Scenery:
    stats = StatReader()

    async def hold() -> None:
        (await stats.hold(place.pid)).close()

    yield hold()
    assert (await stats.key(place.pid)).pid == place.pid
    stats.close()


async def reading_many_processes(place: Place) -> Scenery:
    stats = StatReader()
    yield stats.stats([place.pid] * 40, os.getuid())
    (line,) = await stats.stats([place.pid], os.getuid())
    assert line
    stats.close()


async def admitting(place: Place) -> Scenery:
    stats = StatReader()
    clients = ClientTable(Uninterested(), stats)
    clients.open()
    handle = ProcessHandle.open(place.pid)
    admission = Admission(clients, "d", handle, Credentials(place.pid, os.getuid(), os.getgid()))
    yield admission.entries()
    admission.close()
    assert not clients.entering
    clients.close()
    stats.close()
    await asyncio.sleep(0)


async def moving_levers(place: Place) -> Scenery:
    server = procfs.process_key(place.pid)
    daemon = Daemon(place.pid)

    async def is_running(_: object) -> bool:
        return True

    levers = ServerLevers(daemon.ask, place.root / "levers.json", is_running, Levers)

    async def hand_over() -> None:
        async with levers.moved(server, Levers(40.0, 1, {"0": "2G"}), 1000):
            await asyncio.sleep(0)

    yield hand_over()
    assert daemon.at_rest
    # The next client has its turn.
    async with levers.moved(server, Levers(50.0), 1001):
        assert daemon.share == "50.0"
    assert daemon.at_rest


class UnhurriedLane(ScriptedLane):
    """A lane that takes a turn of the loop for each answer."""

    async def clients(self) -> dict[int, int]:
        await asyncio.sleep(0)
        return await super().clients()

    async def ask_for(self, user: Command, deadline: float | None) -> CommandReply:
        await asyncio.sleep(0)
        return await super().ask_for(user, deadline)


async def terminating(place: Place) -> Scenery:
    lane = UnhurriedLane({place.pid: 1}, ("0",))
    with ProcessHandle.open(place.pid) as client:
        yield terminate((lane,), client, TerminationPlan(5.0))
        assert client.alive()


async def holding_an_image(_: Place) -> Scenery:
    owner = TierOwner({Tier.HOST: 4096}, PoolMetrics())

    def load(_: threading.Event) -> int:
        return os.memfd_create("image")

    async def hold() -> None:
        await owner.hold_in_host("k", 4096, "/store", load)
        owner.release(Tier.HOST, "k")

    yield hold()
    await hold()
    assert await owner.close()


PLAYS: list[Play] = [
    keeping_in_a_holder,
    forgetting_in_a_holder,
    listing_a_holder,
    keeping_in_the_service_manager,
    forgetting_in_the_service_manager,
    reading_a_process,
    reading_many_processes,
    admitting,
    moving_levers,
    terminating,
    holding_an_image,
]
