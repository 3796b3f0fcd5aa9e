"""A vault with two lanes on the loop of a test, with real descriptors and processes; it checks what it is left with."""

import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from mpsguard.guard import config
from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.broker.lowered_shares import ClassCeilings, ProgramShares
from mpsguard.guard.config import DomainConfig, GuardConfig
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.control_api.protocol import Event
from mpsguard.guard.daemon.lane_specs import lane_spec
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.incidents.failover import Failover
from mpsguard.guard.incidents.live_resize import LiveResize
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.lanes.lane_set import LaneSet
from mpsguard.guard.lanes.settings import SettingsStore
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.guard.model import Client, LaneSettings
from mpsguard.linux.descriptors import fd_bundle
from mpsguard.linux.descriptors.fd_bundle import FdBundle
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.vault.server import quota as quotas
from mpsguard.vault.server.fd_storage.background import BackgroundStorage
from mpsguard.vault.server.fd_storage.storage import buffer_name
from mpsguard.vault.server.quota import Quota
from mpsguard.vault.server.vault import Vault
from mpsguard.vault.wire.errors import UnavailableError
from mpsguard.vault.wire.region import Lease, LeaseRole, RegionLayout, SessionKey
from mpsguard.vault.wire.wire import Fenced, Granted, Notice, Released
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import until
from tests.integration.vault.running import LocalStorage

KEY: Final = SessionKey(os.getuid(), "s")
SIZE: Final = 4096
PROGRAM: Final = "program"
PROCESSES: Final = 4


class Deliberate(LocalStorage):
    """Takes a few turns of the loop over everything; refuses the bundles of which the names are in ``refused``."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    async def keep(self, name: str, bundle: FdBundle) -> None:
        try:
            for _ in range(3):
                await asyncio.sleep(0)
            if name in self.refused:
                raise UnavailableError(f"no room for {name}")
        except BaseException:
            bundle.kept.close()
            bundle.receipt.close()
            raise
        await super().keep(name, bundle)
        await asyncio.sleep(0)

    async def forget(self, name: str) -> None:
        await asyncio.sleep(0)
        await super().forget(name)


class Uninterested:
    """An audience of clients."""

    def client_came(self, client: Client, handle: ProcessHandle) -> None:
        """See `client_table.Audience`."""

    def client_came_again(self, client: Client, handle: ProcessHandle) -> None:
        """See `client_table.Audience`."""

    def client_ended(self, client: Client, handle: ProcessHandle) -> None:
        """See `client_table.Audience`."""


class Member:
    """A process with a lease, and what it was told."""

    def __init__(self, token: int, process: ProcessKey) -> None:
        self.token = token
        self.process = process
        self.told: list[Notice] = []
        self.answered = False
        """Whether what it asked for last was done, so that it need not be told."""
        # Once: leases compare it by identity.
        self.listen = self._hear

    def _hear(self, notice: Notice) -> bool:
        self.told.append(notice)
        return True

    def heard(self, kind: type[Notice]) -> bool:
        return any(isinstance(notice, kind) for notice in self.told)


class Bench:
    """What a guard has of one domain, without its connections."""

    def __init__(self, processes: list[subprocess.Popen[bytes]], root: Path) -> None:
        self._processes = processes
        self.storage = Deliberate()
        self.background = BackgroundStorage(self.storage)
        self.vault = Vault(self.background, Quota())
        self.stats = StatReader()
        self.members: list[Member] = []
        self.events = EventStream()
        self.happened: list[Event] = []
        self.events.listen(self.happened.append)
        classes = (config.ServiceClass("batch", default=True),)
        settings = DomainConfig(name="d", standby=True, classes=classes)
        guard = GuardConfig(str(root / "run"), str(root / "state"), str(root / "log"))
        self.lanes = [self._lane(guard, settings, root, index) for index in range(2)]
        self.clients = ClientTable(Uninterested(), self.stats)
        (root / "state").mkdir()
        self.view = DomainView(settings, self.clients, LaneSet(self.lanes, root / "state" / "active.json"))
        self.shares = ProgramShares(root / "state" / "shares.json")
        views = {"d": self.view}
        self.failover = Failover(views, self.events, Metrics())
        self.failover.watch(self.vault)
        self.resizing = LiveResize(views, {"d": self.shares}, {"d": ClassCeilings()}, self.failover, self.events)

    def _lane(self, guard: GuardConfig, settings: DomainConfig, root: Path, index: int) -> Lane:
        async def start(_: object) -> None:
            """Never called: the lanes do not run."""

        spec = lane_spec(guard, settings, "/bin/false", index)
        store = SettingsStore(root / f"{index}.json", LaneSettings())
        return Lane(spec, store, root / f"{index}.levers.json", lambda *_: None, stats=self.stats, start=start)

    # --- what is there before

    def hold(self, index: int) -> ProcessHandle:
        """Return a new handle on one of the processes."""
        return ProcessHandle.open(self._processes[index].pid)

    def member(self, index: int) -> tuple[Member, ProcessHandle]:
        """Return a process that is about to have a lease, and a handle on it."""
        handle = self.hold(index)
        member = Member(100 + len(self.members), handle.key)
        self.members.append(member)
        return member, handle

    async def attach(self, index: int, role: LeaseRole = LeaseRole.WRITER) -> Member:
        """Give a process a lease."""
        member, handle = self.member(index)
        await self.vault.attach(KEY, Lease(member.token, handle.key, KEY.uid, role), handle, member.listen)
        member.answered = True
        return member

    async def standby(self, index: int) -> Member:
        """Give a process the lease of a ready standby; a spare state buffer is stored for it."""
        member = await self.attach(index, LeaseRole.STANDBY)
        await self.vault.ready(KEY, member.token)
        await self.background.settle()
        return member

    def client(self, index: int, lane: int, share: float | None = None) -> None:
        """Make a process a client of a lane."""
        handle = self.hold(index)
        name = self.lanes[lane].spec.name
        self.clients.add(
            Client(
                handle.key,
                KEY.uid,
                0,
                "sleep",
                "",
                None,
                None,
                "d",
                name,
                0.0,
                program=PROGRAM,
                service_class="batch",
                sm_share=share,
            ),
            handle,
        )

    async def region(self, member: Member, name: str = "r") -> None:
        """Create a region."""
        layout = RegionLayout((SIZE,))
        reservation = self.vault.regions.reserve(KEY, member.token, name, layout, b"")
        await self.vault.regions.register(reservation, memory(1))

    # --- what must hold afterwards

    async def settled(self) -> None:
        """Wait until nothing is under way in the background."""
        async with asyncio.timeout(30):
            await self.failover.close()
            await until(lambda: not self.vault._failovers)
            await self.background.settle()

    async def check(self) -> None:
        """Check what must hold after any operation, however it ended."""
        await self.settled()
        self._check_leases()
        self._check_storage()
        used = quotas.of_sessions(self.vault.store.sessions.values())
        assert self.vault.store._total == used, "reservations are left"
        assert not self.vault.lifetimes._making

    def _check_leases(self) -> None:
        for session in self.vault.store.sessions.values():
            ready = [lease for lease in session.readers if lease.role is LeaseRole.STANDBY and lease.ready]
            assert session.writer is not None or not ready or not session.orphaned, f"no writer: {session}"
        for member in self.members:
            lease = next((each for s in self.vault.store.sessions.values() if (each := s.lease(member.token))), None)
            if lease is None or lease.role is LeaseRole.FENCED:
                assert not member.answered or member.heard(Fenced) or member.heard(Released), f"{member.token} not told"
            elif lease.role is LeaseRole.WRITER:
                assert member.answered or member.heard(Granted), f"{member.token} writes and was not told"
            assert self.vault._leases.has(member.token) == (lease is not None), f"{member.token}: handle without lease"

    def _check_storage(self) -> None:
        store = self.vault.store
        wanted = set(store.contents())
        spares = {
            buffer_name(session.id, generation)
            for key, session in store.sessions.items()
            if (generation := store.session_fds[key].spare_generation) is not None
        }
        kept = set(self.storage.bundles)
        assert wanted <= kept, f"not stored: {wanted - kept}"
        assert kept <= wanted | spares, f"stored for nothing: {kept - wanted - spares}"
        for name, fds in store.contents().items():
            label, copies = fd_bundle.unpack(self.storage.bundles[name].kept)
            try:
                assert label == name.encode()
                assert [os.fstat(fd).st_ino for fd in copies] == [os.fstat(fd).st_ino for fd in fds]
            finally:
                for fd in copies:
                    os.close(fd)

    async def close(self) -> None:
        """Give everything back."""
        await self.resizing.close()
        await self.failover.close()
        await self.vault.settle()
        await self.background.settle()
        self.vault.close()
        await self.background.close()
        self.clients.close()
        for lane in self.lanes:
            await lane._fresh.close()
            await lane._worker.close()
        self.stats.close()
        self.storage.empty()


def memory(index: int, size: int = SIZE) -> tuple[int, ...]:
    """Return the descriptor of a chunk of memory."""
    fd = os.memfd_create(f"chunk-{index}", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return (fd,)


class Stage:
    """Makes benches, over processes that live as long as it does."""

    def __init__(self) -> None:
        self.processes = [subprocess.Popen(["sleep", "600"]) for _ in range(PROCESSES)]

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
            process.wait()

    @asynccontextmanager
    async def bench(self) -> AsyncIterator[Bench]:
        """A bench, checked at the end."""
        async with self.place() as root:
            bench = Bench(self.processes, root)
            try:
                yield bench
                await bench.check()
            finally:
                await bench.close()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Path]:
        """A directory; no descriptor and no thread is left of what was done meanwhile.

        But a guard listens for HTTP on a thread for as long as its process lives.
        """
        root = Path(tempfile.mkdtemp(prefix="mgt-"))
        before, kept, threads = open_descriptors(), _kept(), threads_now()
        try:
            yield root
        finally:
            shutil.rmtree(root)
        await until(lambda: threads_now() <= threads)
        await until(lambda: len(opened_since(before)) <= _kept() - kept)


def _kept() -> int:
    """Number of threads that listen for HTTP, each with one descriptor."""
    return sum(each.name.startswith("http-local") for each in threading.enumerate())


def threads_now() -> set[str]:
    """Names of the running threads, without those that are kept: of the loop's own pool, and of HTTP."""
    return {each.name for each in threading.enumerate() if not each.name.startswith(("asyncio_", "http-local"))}
