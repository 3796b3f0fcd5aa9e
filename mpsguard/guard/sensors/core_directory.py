"""The directory into which clients that opted in write their GPU core dumps.

A client opts in by its environment (docs/guides/sm-faults.md): ``CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1`` and
``CUDA_COREDUMP_FILE=DIRECTORY/core.%p``. Every user may write there, as in /tmp. A dump speaks for the client that
wrote it, and fanotify tells which process that was: one that no other process has opened is verified. Without it a file
counts for the client with the pid in its name, if it is of the client's user, and is not verified. All other files are
refused. Files stay where they are: they are their owners'.

All that touches a file is done by one thread of this object's own, which a file system could hold up for good.
"""

import asyncio
import os
import re
import stat
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Self

from mpsguard.guard.model import Client
from mpsguard.guard.sensors.gpu_core import DumpFile, GpuCore, NotACoreError, parse
from mpsguard.guard.sensors.sensor import CLOSE_WITHIN, OnDump, Sensor, SensorSetup, SensorState, register
from mpsguard.linux.files import fanotify
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.files.fanotify import DirectoryEvents, FileEvent
from mpsguard.linux.files.inotify import DirectoryWatch
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.process import ProcessHandle, tell_apart
from mpsguard.linux.side_threads import SideThreads
from mpsguard.linux.user_budget import UserBudget
from mpsguard.linux.user_share import Place, UserShare

MODE: Final = 0o1733
"""Every user may make files and open those with a name it knows; none may list them or remove another's."""
LARGEST: Final = 256 << 20
"""Bytes of a dump that is looked at; a full one of a small program has 22 MB (H200, driver 580.159.04)."""
_NAME: Final = re.compile(r"core\.([1-9][0-9]{0,9})$", re.ASCII)
_SHARE: Final = 64
"""Files of one user that are read in `_WINDOW`, or are being written: a GPU has 60 MPS clients at most."""
_WINDOW: Final = 10.0
_SHARE_SECONDS: Final = 1.0
"""Seconds of reading that a user gets in `_WINDOW`; a dump takes a few milliseconds."""
_MOST: Final = 512
"""Files that are being written, or wait to be read; of all users."""
_NEW: Final = 2.0
"""Seconds since its making for which a file that is opened is new: nothing of it has been missed."""
_WRITTEN_WITHIN: Final = 60.0
"""Seconds for which a file is looked for as being written; a full dump takes 0.25 s."""
_FORGET_EVERY: Final = 1.0
"""Seconds after which those are forgotten again that are not: a user may make thousands of files a second."""
_TELL_WITHIN: Final = 2.0
"""Seconds after which a file that was read is refused if there is no end of what happens in the directory."""
_GONE_FOR: Final = 10.0
"""Seconds for which a client that has ended may have written a dump: the driver ends it when it has."""

_Writer = int | ProcessKey
"""A process: the inode of its pidfds, or pid and start time where that is not its own (Linux before 6.9)."""

_FileKey = tuple[int, int, float | None]
"""Device, number, and time of making."""


class _File:
    """One that is being written."""

    def __init__(self, name: str, owner: int, began: float, place: Place, *, doubtful: bool) -> None:
        self.name = name
        self.owner = owner
        self.began = began
        self.place = place
        self.doubtful = doubtful
        """Whether a process that is not known may have written to it."""
        self.writers: set[_Writer] = set()
        self.told = False
        self.until = began + _WRITTEN_WITHIN
        """When it is forgotten."""


class _Written(NamedTuple):
    """One that has been written and read."""

    core: GpuCore | None
    fd: int
    read_at: float


@register
class CoreDirectory(Sensor):
    """Watches one directory. Owns a descriptor of it, the watch, and a thread. To be told of clients."""

    name: ClassVar[str] = "core directory"

    def __init__(self, path: Path, dumped: OnDump, *, identify: bool = True) -> None:
        """OSError if it cannot be made, or is not ours alone to rule. ``identify``: by fanotify if possible."""
        self._path = path
        self._dumped = dumped
        self._loop = asyncio.get_running_loop()
        self._clients: dict[ProcessKey, Client] = {}
        self._writers: dict[_Writer, Client] = {}
        """The same, by process."""
        self._by_inode = tell_apart()
        self._refused = 0
        self._files: dict[_FileKey, _File] = {}
        self._places: UserShare[int] = UserShare(_MOST, _SHARE)
        """One for each of them."""
        self._forget_at = 0.0
        self._written_files: dict[_FileKey, _Written] = {}
        self._reads: UserBudget[int] = UserBudget(_SHARE, _WINDOW)
        self._seconds: UserBudget[int] = UserBudget(_SHARE_SECONDS, _WINDOW)
        self._closed = False
        self._events: DirectoryEvents | None = None
        self._watch: DirectoryWatch | None = None
        self._reader = SideThreads("core-directory", 1)
        self._waiting = 0
        self._why = ""
        with Directory.make(path, MODE) as directory:
            directory.allow(MODE, os.getegid())
            self._fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory.fd)
        try:
            try:
                self._events = DirectoryEvents(self._fd) if identify else None
            except OSError as error:
                self._why = f" ({error.strerror})"
            if self._events is None:
                self._watch = DirectoryWatch(Path(f"/proc/self/fd/{self._fd}"), self._written)
        except BaseException:
            os.close(self._fd)
            raise
        if self._events is not None:
            self._thread = threading.Thread(target=self._follow, args=(self._events,), name=self.name, daemon=True)
            self._thread.start()

    def client_came(self, client: Client, handle: ProcessHandle) -> None:
        """Count a client among those with dumps that would be their own word."""
        self._clients[client.process] = client
        self._writers[os.fstat(handle.fileno()).st_ino if self._by_inode else client.process] = client

    def client_ended(self, client: Client) -> None:
        """It has ended; its dump was written before, and is perhaps not read yet."""
        self._loop.call_later(_GONE_FOR, self._forget_client, client)

    def _forget_client(self, client: Client) -> None:
        self._clients.pop(client.process, None)
        for writer in [writer for writer, known in self._writers.items() if known is client]:
            del self._writers[writer]

    @classmethod
    def open(cls, setup: SensorSetup) -> Self | None:
        """See `Sensor`."""
        return None if setup.core_directory is None else cls(setup.core_directory, setup.on_dump)

    def state(self) -> SensorState:
        """Where it is, how writers are known, and what was not believed."""
        how = "" if self._events is not None else f"; who writes a dump is not verified{self._why}"
        refused = f"; {self._refused} files refused" if self._refused else ""
        return SensorState(True, f"watches {self._path}{how}{refused}")

    def close(self) -> None:
        """Give everything back; safe to call twice. A thread that a file system holds up is left behind."""
        if self._closed:
            return
        self._closed = True
        if self._watch is not None:
            self._watch.close()
        if self._events is not None:
            self._events.wake()
            self._thread.join(CLOSE_WITHIN / 2)
        # The thread that is held up still needs it.
        if self._reader.close(CLOSE_WITHIN / 2) and (self._events is None or not self._thread.is_alive()):
            os.close(self._fd)
            self._fd = -1

    # With fanotify, on the thread.

    def _follow(self, events: DirectoryEvents) -> None:
        try:
            while not self._closed:
                happened = events.read(0 if self._written_files else None)
                for event in happened:
                    self._take(events, event)
                # What was done to a file before it was read has been told of once nothing more is to be told.
                for key in list(self._written_files):
                    late = time.monotonic() - self._written_files[key].read_at > _TELL_WITHIN
                    if late or not happened:
                        self._tell(events, key, doubtful=late)
        except OSError as error:
            self._why = f"; cannot be watched any more: {error.strerror}"
        finally:
            for written in self._written_files.values():
                os.close(written.fd)
            events.close()

    def _take(self, events: DirectoryEvents, event: FileEvent) -> None:
        if event.mask & fanotify.OVERFLOW:
            for file in self._files.values():
                file.doubtful = True
        try:
            if event.fd >= 0 and event.pid != os.getpid():
                self._note(events, event)
        finally:
            event.close()

    def _note(self, events: DirectoryEvents, event: FileEvent) -> None:
        about = os.fstat(event.fd)
        if not stat.S_ISREG(about.st_mode):
            return
        # Another file may have the number of one that is gone.
        key = about.st_dev, about.st_ino, fanotify.born(event.fd)
        file = self._files.get(key)
        if file is None:
            file = self._new_file(events, event, about)
            if file is None:
                self._refused += 1
                return
            self._files[key] = file
        writer = self._writer(event)
        if writer is None:
            file.doubtful = True
        else:
            file.writers.add(writer)
        if event.mask & fanotify.CLOSE_WRITE and key not in self._written_files and not file.told:
            core = self._read(event.fd, file.owner, file.name)
            self._written_files[key] = _Written(core, os.dup(event.fd), time.monotonic())

    def _writer(self, event: FileEvent) -> _Writer | None:
        """The process that caused an event; None if that cannot be told any more."""
        # Not by start time where there is another way: reading that may never end (`stat_reader`).
        if self._by_inode:
            return os.fstat(event.pidfd).st_ino if event.pidfd >= 0 else None
        return event.process()

    def _new_file(self, events: DirectoryEvents, event: FileEvent, about: os.stat_result) -> _File | None:
        now = time.monotonic()
        if now >= self._forget_at:
            self._forget(now)
        if not self._places.has_room(about.st_uid):
            return None
        # One that was made before may be open for writing elsewhere, and what became of an older entry is forgotten.
        born = fanotify.born(event.fd)
        new = born is not None and abs(time.time() - born) < _NEW
        doubtful = not new or not event.mask & fanotify.OPEN or about.st_nlink != 1
        try:
            events.watch_file(event.fd)
        except OSError:
            doubtful = True
        name = Path(f"/proc/self/fd/{event.fd}").readlink().name
        return _File(name, about.st_uid, now, self._places.exceed(about.st_uid), doubtful=doubtful)

    def _forget(self, now: float) -> None:
        self._forget_at = now + _FORGET_EVERY
        for key, file in list(self._files.items()):
            if now > file.until and key not in self._written_files:
                self._files.pop(key).place.give_back()

    def _tell(self, events: DirectoryEvents, key: _FileKey, *, doubtful: bool) -> None:
        written, file = self._written_files.pop(key), self._files[key]
        file.told = True
        file.until = time.monotonic() + _WINDOW
        with suppress(OSError):
            events.leave_file(written.fd)
        os.close(written.fd)
        client = self._writers.get(next(iter(file.writers))) if len(file.writers) == 1 else None
        if written.core is None or client is None or client.uid != file.owner or file.doubtful or doubtful:
            self._refused += 1
            return
        self._hand_over(written.core, file.began, client.process, verified=True)

    # Without it: in the loop, and on a thread beside it.

    def _written(self, name: str, began: float) -> None:
        if self._waiting >= _MOST or _NAME.match(name) is None:
            self._refused += 1
            return
        self._waiting += 1
        self._reader.run(partial(self._look, name, began, {key.pid: client for key, client in self._clients.items()}))

    def _look(self, name: str, began: float, clients: Mapping[int, Client]) -> None:
        self._waiting -= 1
        found = _NAME.match(name)
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        except OSError:
            self._refused += 1
            return
        try:
            about = os.fstat(file)
            client = clients.get(int(found[1])) if found is not None else None
            own = stat.S_ISREG(about.st_mode) and client is not None and client.uid == about.st_uid
            core = self._read(file, about.st_uid, name) if own else None
        finally:
            os.close(file)
        if core is None or client is None:
            self._refused += 1
        else:
            self._hand_over(core, began, client.process, verified=False)

    def _read(self, file: int, owner: int, name: str) -> GpuCore | None:
        began = time.monotonic()
        if _NAME.match(name) is None or not self._reads.take(owner, began) or self._seconds.left(owner, began) <= 0:
            return None
        try:
            dump = DumpFile(file)
            return parse(dump) if dump.size <= LARGEST else None
        except (NotACoreError, OSError):
            return None
        finally:
            now = time.monotonic()
            self._seconds.spend(owner, now, now - began)

    def _hand_over(self, core: GpuCore, began: float, process: ProcessKey, *, verified: bool) -> None:
        with suppress(RuntimeError):  # the loop has ended, and wants no more
            self._loop.call_soon_threadsafe(partial(self._dumped, lambda: core, began, process, verified=verified))
