"""Client table: the living clients of a domain, their identities, and their ends."""

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import Final, Protocol

import msgspec

from mpsguard.guard.broker.classification import CLASS_VARIABLE, MEMORY_VARIABLE, PRIORITY_VARIABLE
from mpsguard.guard.lanes.levers import NONE, Levers
from mpsguard.guard.model import Client
from mpsguard.linux.identity import Credentials, ProcessKey, UserKey
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.exec_watch import ExecWatch
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.process_reader import LoopReader, Told
from mpsguard.linux.processes.stat_reader import StatReader

_GPUS: Final = "CUDA_VISIBLE_DEVICES"
_PIPE_DIRECTORY: Final = "CUDA_MPS_PIPE_DIRECTORY"
_MAX_PATH: Final = 4096
PROGRAM_VARIABLE: Final = "MPSGUARD_PROGRAM"
"""Environment variable: the same unguessable word for all processes of one program under `mpsguard run --standby`."""
_MAX_PROGRAM: Final = 64


SECOND_VARIABLE: Final = "MPSGUARD_SECOND_DRIVER"
"""Environment variable: whether the preload gives the program a second driver (docs/guides/second-driver.md)."""
_SECOND_MODES: Final = frozenset({"cold", "hot"})

_VARIABLES: Final = (
    _GPUS,
    _PIPE_DIRECTORY,
    PROGRAM_VARIABLE,
    PRIORITY_VARIABLE,
    MEMORY_VARIABLE,
    CLASS_VARIABLE,
    SECOND_VARIABLE,
)


def identify(
    handle: ProcessHandle,
    owner: Credentials,
    entries: Told,
    *,
    domain: str,
    lane: str,
    adopted: bool = False,
    unbrokered: bool = False,
    service_class: str | None = None,
    levers: Levers = NONE,
    connected_at: float | None = None,
) -> Client:
    """Return a client, from its /proc entries (`ClientTable.read`).

    ``owner`` is the process, ``levers`` what was set at its server when it was handed over, at ``connected_at`` (None:
    now).
    """
    environment = entries.environment
    gpus = environment.get(_GPUS)
    directory = environment.get(_PIPE_DIRECTORY)
    second = environment.get(SECOND_VARIABLE)
    return Client(
        process=handle.key,
        uid=owner.uid,
        gid=owner.gid,
        command=entries.command,
        cgroup=entries.cgroup,
        container=procfs.container(entries.cgroup),
        gpus=procfs.printable(gpus)[: procfs.MAX_COMMAND] if gpus is not None else None,
        domain=domain,
        lane=lane,
        connected_at=time.time() if connected_at is None else connected_at,
        adopted=adopted,
        unbrokered=unbrokered,
        pipe_directory=procfs.printable(directory)[:_MAX_PATH] if directory is not None else None,
        program=program_of(environment),
        service_class=service_class,
        sm_share=levers.share,
        priority=levers.priority,
        memory_limits=tuple(f"{gpu}={limit}" for gpu, limit in levers.limits.items()),
        container_root=owner.container_root,
        second_driver=second if second in _SECOND_MODES else None,
    )


def program_of(environment: Mapping[str, str]) -> str | None:
    """Return the program to which a process claims to belong, made printable and cut; None if it names none."""
    program = environment.get(PROGRAM_VARIABLE)
    return None if program is None else procfs.printable(program)[:_MAX_PROGRAM]


class Audience(Protocol):
    """Observer of clients' arrivals and ends. Handles are valid during the call only."""

    def client_came(self, client: Client, handle: ProcessHandle) -> None:
        """Handle a client's first handover to a lane, or its discovery on one."""

    def client_came_again(self, client: Client, handle: ProcessHandle) -> None:
        """Handle another handover of a known client: each of its contexts is a connection."""

    def client_ended(self, client: Client, handle: ProcessHandle) -> None:
        """Handle a client's end: its process has ended, or has executed another program, which ends all of CUDA."""


class ClientTable:
    """Owns a handle on every client of a domain from its first handover to its end."""

    def __init__(self, audience: Audience, stats: StatReader) -> None:
        """``stats`` looks up processes; it belongs to the caller."""
        self._audience = audience
        self._stats = stats
        self._by_pid: dict[int, ProcessHandle] = {}
        """The newest handle of each living process that is in the table, or was and has executed another program."""
        self._alive: dict[ProcessKey, tuple[Client, ProcessHandle]] = {}
        self._changed: dict[ProcessKey, tuple[Client, ProcessHandle]] = {}
        """Living processes that have executed another program since they were clients, as they were then."""
        self.entering: dict[ProcessKey, int] = {}
        """Processes with a first connection in progress, with their user: they become clients if it succeeds."""
        self.entering_class: dict[ProcessKey, str] = {}
        """The service class of those among them that have one."""
        self._handed_over: dict[ProcessKey, tuple[asyncio.Task[Told], str]] = {}
        """New clients that have their socket, each with the reading of its entries, and its lane: at the end of the
        reading it is entered."""
        self._execs: ExecWatch | None = None
        self._reader = LoopReader()

    def open(self) -> None:
        """Start the reader of clients' /proc entries."""
        self._reader.start()

    def key_now(self, key: ProcessKey) -> ProcessKey:
        """Return the key with which a process, known by any of its keys, would become a client now."""
        changed = self._changed.get(key.process)
        if changed is None:
            return key.process
        before = changed[1].key
        return msgspec.structs.replace(before, execs=before.execs + 1)

    async def hold(self, pidfd: int, pid: int, uid: int) -> ProcessHandle:
        """Hold the process of a pidfd, which is taken over; the key is that with which it would be a client now.

        Takes some milliseconds at most, unless the process keeps its start time from being read.

        Raises:
            ProcessLookupError: the process has ended.
            TimeoutError: its start time could not be read in time.
        """
        known = self._by_pid.get(pid)
        # One living process has this number. A known one that lives is that of the pidfd, if that one lives then. One
        # that has executed another program begins elsewhere in memory now.
        if known is not None and known.key in self._alive and known.alive():
            handle = ProcessHandle.of_living(pidfd, known.key.process, known.image)
        else:
            handle = await self._stats.hold(pid, uid, pidfd)
        handle.key = self.key_now(handle.key)
        return handle

    async def read(self, process: ProcessKey, uid: int) -> Told:
        """Return the /proc entries of a process that is, or will be, a client; few if they cannot be read in time."""
        return await self._reader.tell(process.pid, uid, _VARIABLES)

    def handed_over(self, process: ProcessKey, reading: asyncio.Task[Told], lane: str) -> None:
        """Note a new client that has its socket to a lane's server and is entered when ``reading`` ends."""
        self._handed_over[process] = reading, lane
        reading.add_done_callback(lambda _: self._handed_over.pop(process, None))

    def not_entered(self) -> list[tuple[ProcessKey, int]]:
        """Return the new clients that have their socket and are not in the table yet, each with its user."""
        return [(process, self.entering[process]) for process in self._handed_over if process in self.entering]

    async def entered(self, wanted: Collection[ProcessKey]) -> None:
        """Wait until each new client that has its socket and is ``wanted`` is in the table.

        Takes as long as reading its entries, `process_reader.DEADLINE` and patience for a reader at most.
        """
        readings = [reading for process, (reading, _) in self._handed_over.items() if process in wanted]
        if readings:
            await asyncio.wait(readings)

    def add(self, client: Client, handle: ProcessHandle) -> None:
        """Enter a client; the table owns ``handle`` from now on. A client that is known already keeps its entry."""
        known = self._alive.get(client.process)
        if known is not None:
            self._audience.client_came_again(known[0], handle)
            handle.close()
            return
        self._alive[client.process] = (client, handle)
        self._by_pid[client.process.pid] = handle
        asyncio.get_running_loop().add_reader(handle.fileno(), self._gone, client.process)
        if self._execs is None:
            self._execs = ExecWatch(self._executed, self._stats)
        self._execs.watch(handle, client.user)
        self._audience.client_came(client, handle)

    def replace(self, client: Client) -> None:
        """Exchange the entry of a client that is in the table."""
        self._alive[client.process] = client, self._alive[client.process][1]

    def handle(self, process: ProcessKey) -> ProcessHandle | None:
        """Return a handle of the client with this key, which the caller closes; None if it has ended."""
        known = self._alive.get(process)
        return known[1].copy() if known is not None and known[1].alive() else None

    def with_pid(self, pid: int) -> ProcessHandle | None:
        """Return a handle of the living client with this pid, which the caller closes; None if there is none."""
        known = self._by_pid.get(pid)
        return self.handle(known.key) if known is not None else None

    def get(self, process: ProcessKey) -> Client | None:
        """Return the client with this key; None if there is none, or it has ended."""
        known = self._alive.get(process)
        return None if known is None else known[0]

    def lane_of(self, process: ProcessKey) -> str | None:
        """Return the lane of a client, which may not be in the table yet; None if it is none, or has ended."""
        known, coming = self._alive.get(process), self._handed_over.get(process)
        return known[0].lane if known is not None else coming[1] if coming is not None else None

    def of_user(self, user: UserKey) -> int:
        """How many processes of a user are held, or about to be: each costs descriptors and a regular look."""
        held = [client.user for known in (self._alive, self._changed) for client, _ in known.values()]
        return held.count(user) + list(self.entering.values()).count(user)

    def of_class(self, name: str) -> int:
        """How many processes of a service class are clients, or about to be."""
        held = [client.service_class for client, _ in self._alive.values()]
        return held.count(name) + list(self.entering_class.values()).count(name)

    def of_class_and_user(self, name: str, user: int) -> int:
        """How many processes of a user are clients of a service class, or about to be."""
        held = [client for client, _ in self._alive.values() if client.service_class == name and client.user == user]
        entering = [
            key for key, found in self.entering_class.items() if found == name and self.entering.get(key) == user
        ]
        return len(held) + len(entering)

    def left(self, process: ProcessKey) -> None:
        """Note that a process' first connection is no more in progress."""
        self.entering.pop(process, None)
        self.entering_class.pop(process, None)

    def all(self) -> list[Client]:
        """Return the clients, oldest first."""
        return [client for client, _ in self._alive.values()]

    def close(self) -> None:
        """Close all handles. The clients have not ended, so no end is published."""
        for _, handle in (*self._alive.values(), *self._changed.values()):
            asyncio.get_running_loop().remove_reader(handle.fileno())
            handle.close()
        self._alive.clear()
        self._changed.clear()
        self._by_pid.clear()
        if self._execs is not None:
            self._execs.close()
        self._reader.close()

    def __len__(self) -> int:
        return len(self._alive)

    def _gone(self, key: ProcessKey) -> None:
        client, handle = self._alive.pop(key)
        self._forget_pid(handle)
        asyncio.get_running_loop().remove_reader(handle.fileno())
        assert self._execs is not None
        self._execs.forget(key)
        self._audience.client_ended(client, handle)
        handle.close()
        self._forget_changed(key.process)

    def _executed(self, key: ProcessKey) -> None:
        client, handle = self._alive[key]
        if not handle.alive():
            # It has ended since: the event loop calls `_gone` next.
            return
        del self._alive[key]
        self._audience.client_ended(client, handle)
        self._forget_changed(key.process)
        self._changed[key.process] = client, handle
        asyncio.get_running_loop().add_reader(handle.fileno(), self._forget_changed, key.process)

    def _forget_changed(self, process: ProcessKey) -> None:
        changed = self._changed.pop(process, None)
        if changed is not None:
            handle = changed[1]
            self._forget_pid(handle)
            asyncio.get_running_loop().remove_reader(handle.fileno())
            handle.close()

    def _forget_pid(self, handle: ProcessHandle) -> None:
        if self._by_pid.get(handle.key.pid) is handle:
            del self._by_pid[handle.key.pid]
