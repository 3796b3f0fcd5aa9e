"""All paths of a guard that are watched: what lies there, and how it is made again."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from mpsguard.guard.broker.endpoint import Endpoint
from mpsguard.guard.broker.public_directory import PublicDirectoryError
from mpsguard.guard.config import GuardConfig
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.control_api.protocol import Event
from mpsguard.guard.control_api.server import Api
from mpsguard.guard.daemon import own_directories
from mpsguard.guard.daemon.domain import Domain
from mpsguard.guard.daemon.http_service import HttpService
from mpsguard.guard.daemon.lane_path import LanePath
from mpsguard.guard.daemon.path_watch import OwnPath, PathError
from mpsguard.guard.daemon.vault_service import VaultService
from mpsguard.guard.journal.journal import Journal
from mpsguard.guard.journal.records import JournalError
from mpsguard.guard.lanes.lane import Lane
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.files.file_lock import LockHeldError
from mpsguard.linux.files.path_state import PathState, Repair, change, decide, leads_to
from mpsguard.linux.sockets.listens import listens
from mpsguard.linux.systemd.notify_queue import NotifyQueue

_JOURNAL_OPENS: Final = 5.0
"""Seconds for the journal's thread to open its file again."""
_ROOM: Final = 1 << 20
"""Bytes that must be free where the guard or a lane writes."""


def _nothing() -> None:
    """Leave nothing to be done in the event loop."""


class PublicPath:
    """A public directory, with all that a guard has there."""

    is_for_programs: bool = True

    def __init__(self, endpoint: Endpoint, store: Callable[[], None]) -> None:
        """``store`` gives the service manager copies of the sockets that it does not hold."""
        self.path: Path = endpoint.path
        self._endpoint = endpoint
        self._store = store

    def changed(self) -> str | None:
        """See `OwnPath`."""
        return self._endpoint.changed()

    def keeps_out(self) -> bool:
        """See `OwnPath`."""
        return self._endpoint.keeps_out()

    def mend(self) -> Callable[[], None]:
        """See `OwnPath`."""
        try:
            take = self._endpoint.mend()
        except PublicDirectoryError as error:
            raise PathError(str(error)) from None

        def finish() -> None:
            take()
            self._store()

        return finish

    def close(self) -> None:
        """See `OwnPath`."""


class DirectoryPath:
    """A directory in which the guard or a lane writes."""

    is_for_programs: bool = False

    def __init__(self, path: Path, make: Callable[[Path], Directory], consequence: str) -> None:
        """Create it; what is there at the first look is what it was made as.

        Args:
            path: Of the directory.
            make: Opens it, made if it is missing, and checks its owner; OSError.
            consequence: What does not work without it.
        """
        self.path = path
        self._make = make
        self._consequence = consequence
        self._opened: Directory | None = None
        self._state: PathState | None = None

    def changed(self) -> str | None:
        """See `OwnPath`."""
        if self._state is None:
            self._open()
        assert self._state is not None
        try:
            what = change(self._state, PathState.of(self.path.stat()))
        except (FileNotFoundError, NotADirectoryError):
            what = "is gone"
        return what if what is not None else self._no_room()

    def keeps_out(self) -> bool:
        """See `OwnPath`."""
        return False

    def mend(self) -> Callable[[], None]:
        """See `OwnPath`."""
        try:
            if self._opened is not None and self._state is not None:
                now = PathState.of(os.fstat(self._opened.fd))
                # One that was moved away is another's to change.
                if decide(self._state, now) is Repair.RESTORE and leads_to(self.path, now):
                    self._opened.give_itself(self._state.permissions, owner=self._state.uid, group=self._state.gid)
            self._open()
        except OSError as error:
            raise PathError(f"{error.filename or self.path}: {error.strerror}; {self._consequence}") from None
        no_room = self._no_room()
        if no_room is not None:
            raise PathError(f"{no_room}; {self._consequence}")
        return _nothing

    def close(self) -> None:
        """See `OwnPath`."""
        if self._opened is not None:
            self._opened.close()

    def _open(self) -> None:
        """Take the directory that is there, or make one."""
        opened = self._make(self.path)
        if self._opened is not None:
            self._opened.close()
        self._opened, self._state = opened, PathState.of(os.fstat(opened.fd))

    def _no_room(self) -> str | None:
        found = os.statvfs(self.path)
        if found.f_flag & os.ST_RDONLY:
            return "is read-only"
        if found.f_bavail * found.f_frsize < _ROOM or (found.f_files and not found.f_favail):
            return "has no room left"
        return None


class CoreDirectoryPath(DirectoryPath):
    """The directory for core files: its sensor watches the one that was there at the start, and no other one."""

    def mend(self) -> Callable[[], None]:
        """See `OwnPath`."""
        if self._state is not None and not leads_to(self.path, self._state):
            raise PathError(f"restart the guard, which watches the one of before; {self._consequence}")
        return super().mend()


class StoredFiles(DirectoryPath):
    """A directory of small files that are remembered, to be written again with the directory."""

    def __init__(self, path: Path, make: Callable[[Path], Directory], consequence: str) -> None:
        """See `DirectoryPath`."""
        super().__init__(path, make, consequence)
        self._files: dict[str, tuple[int, bytes]] = {}
        """Time of the last change (ns) and content, by name."""

    def changed(self) -> str | None:
        """See `OwnPath`."""
        what = super().changed()
        if what is None:
            found = {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(self.path) if entry.is_file()}
            for name, at in found.items():
                if self._files.get(name, (None, b""))[0] != at:
                    with suppress(FileNotFoundError):
                        self._files[name] = at, (self.path / name).read_bytes()
            self._files = {name: known for name, known in self._files.items() if name in found}
        return what

    def _open(self) -> None:
        super()._open()
        assert self._opened is not None
        for name, (_, content) in self._files.items():
            if self._opened.status(name) is None:
                self._opened.write(name, content, 0o600)


class JournalPath:
    """The journal's file; SQLite goes on in one that has lost its name."""

    is_for_programs: bool = False

    def __init__(self, path: Path, journal: Callable[[], Journal]) -> None:
        self.path = path
        self._journal = journal
        self._state: PathState | None = None

    def changed(self) -> str | None:
        """See `OwnPath`."""
        found = _look(self.path)
        self._state = self._state or found
        if self._state is None or (found is not None and found.is_same_object(self._state)):
            return None
        return change(self._state, found)

    def keeps_out(self) -> bool:
        """See `OwnPath`."""
        return False

    def mend(self) -> Callable[[], None]:
        """See `OwnPath`."""
        journal = self._journal()
        try:
            journal.open_again(_JOURNAL_OPENS)
        except JournalError as error:
            raise PathError(f"{error}; incidents are not kept") from None
        except TimeoutError:
            raise PathError("its disk does not answer; incidents are not kept") from None
        self._state = _look(self.path)
        return journal.remember_again

    def close(self) -> None:
        """See `OwnPath`."""


class SocketPath:
    """A socket in the run directory."""

    is_for_programs: bool = False

    def __init__(
        self, path: Path, listen: Callable[[], socket.socket], serve: Callable[[socket.socket], None], consequence: str
    ) -> None:
        """Create it; what is there at the first look is what it was made as.

        Args:
            path: Of the socket.
            listen: Makes it again, on any thread; OSError.
            serve: Serves on it, in the event loop.
            consequence: What does not work without it.
        """
        self.path = path
        self._listen = listen
        self._serve = serve
        self._consequence = consequence
        self._state: PathState | None = None

    def changed(self) -> str | None:
        """See `OwnPath`."""
        found = _look(self.path)
        self._state = self._state or found
        return "is gone" if self._state is None else change(self._state, found)

    def keeps_out(self) -> bool:
        """See `OwnPath`."""
        return False

    def mend(self) -> Callable[[], None]:
        """See `OwnPath`."""
        expected, found = self._state, _look(self.path)
        try:
            is_ours = expected is not None and found is not None and found.is_same_object(expected)
            is_served = found is not None and not is_ours and listens(self.path)
            match Repair.MAKE if expected is None else decide(expected, found, is_served=is_served):
                case Repair.RESTORE if expected is not None:
                    with Directory.open(self.path.parent) as directory:
                        directory.give(self.path.name, expected.permissions, owner=expected.uid, group=expected.gid)
                    return _nothing
                case Repair.LEAVE:
                    raise PathError(f"it is not ours to remove; {self._consequence}")
                case _:
                    listener = self._listen()
        except (OSError, LockHeldError) as error:
            raise PathError(f"{error}; {self._consequence}") from None
        self._state = _look(self.path)
        return partial(self._serve, listener)

    def close(self) -> None:
        """See `OwnPath`."""


def _look(path: Path) -> PathState | None:
    try:
        return PathState.of(path.lstat())
    except (FileNotFoundError, NotADirectoryError):
        return None


class UntilQuit:
    """A path that is left alone once those that need it were told to quit: what a script removes then stays removed."""

    def __init__(self, own: OwnPath, quits: Callable[[], bool]) -> None:
        self.path: Path = own.path
        self.is_for_programs: bool = own.is_for_programs
        self._own = own
        self._quits = quits

    def changed(self) -> str | None:
        """See `OwnPath`."""
        return None if self._quits() else self._own.changed()

    def keeps_out(self) -> bool:
        """See `OwnPath`."""
        return self._own.keeps_out()

    def mend(self) -> Callable[[], None]:
        """See `OwnPath`."""
        return self._own.mend()

    def close(self) -> None:
        """See `OwnPath`."""
        self._own.close()


class PathOwners(NamedTuple):
    """The parts of a guard that have paths of their own."""

    domains: Mapping[str, Domain]
    api: Api[Any]
    http: HttpService
    vault: VaultService | None


def all_of(
    settings: GuardConfig, owners: PathOwners, manager: NotifyQueue, events: EventStream, journal: Callable[[], Journal]
) -> Iterator[OwnPath]:
    """Return all paths of a guard, outer ones first."""
    domains = owners.domains.values()

    def all_quit() -> bool:
        return all(domain.quits() for domain in domains)

    for domain in domains:
        for endpoint in domain.endpoints:
            yield UntilQuit(PublicPath(endpoint, partial(store, domain, manager)), domain.quits)
    for path in _of_the_guard(settings, journal):
        yield UntilQuit(path, all_quit)
    for domain in domains:
        for lane in domain.lanes.all:
            yield UntilQuit(_lane_path(lane, events), domain.quits)
            logs = DirectoryPath(
                lane.spec.log_directory,
                own_directories.open_lane_logs,
                "the lane writes no logs: faults are seen later",
            )
            yield UntilQuit(logs, domain.quits)
    for path in _sockets(owners):
        yield UntilQuit(path, all_quit)


def _of_the_guard(settings: GuardConfig, journal: Callable[[], Journal]) -> Iterator[OwnPath]:
    run, state = Path(settings.run_directory), Path(settings.state_directory)
    yield DirectoryPath(run, own_directories.open_run, "no command and no new lane reaches the guard")
    yield DirectoryPath(state, own_directories.open_state, "incidents and settings are not kept")
    yield StoredFiles(state / "lanes", own_directories.open_state, "settings of lanes are not kept")
    yield JournalPath(state / "journal.sqlite", journal)
    if settings.core_directory is not None:
        path = Path(settings.core_directory)
        yield CoreDirectoryPath(path, partial(Directory.open, shared=True), "GPU core dumps are not seen")


def _sockets(owners: PathOwners) -> Iterator[OwnPath]:
    for path in owners.api.paths:
        yield SocketPath(
            path, partial(owners.api.listen, path), partial(owners.api.serve, path), "mpsguard-ctl gets no answer"
        )
    yield SocketPath(owners.http.path, owners.http.listen, owners.http.serve, "the page is not served on its socket")
    vault = owners.vault
    if vault is not None:
        yield SocketPath(vault.path, vault.listen, vault.serve, "programs do not reach the vault")


def _lane_path(lane: Lane, events: EventStream) -> LanePath:
    path = LanePath(lane)

    def listen(event: Event) -> None:
        if event.kind in ("lane_started", "lane_adopted") and event.data.get("lane") == lane.spec.name:
            path.learn()

    events.listen(listen)
    return path


def store(domain: Domain, manager: NotifyQueue) -> None:
    """Give the service manager copies of a domain's listening sockets that it does not hold, so that they outlive us.

    They take the place of those that it was given before.
    """
    own = [endpoint.directory for endpoint in domain.endpoints if not endpoint.directory.held]
    fds = tuple(sock.fileno() for directory in own for sock in directory.sockets.values())
    if fds:
        manager.notify("FDSTOREREMOVE=1", f"FDNAME=listen-{domain.name}")
        manager.notify("FDSTORE=1", "FDPOLL=0", f"FDNAME=listen-{domain.name}", fds=fds)
