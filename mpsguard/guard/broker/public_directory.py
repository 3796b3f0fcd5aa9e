"""The public pipe directory, as clients and the vendor's command line expect it: sockets and lock.

The sockets and their modes are those of the stock daemon of driver 580.159.04: `control` 0666, `control_privileged`
0755 (only the owner may connect). No client opens anything else, or lists the directory (handshake.md). The rest
differs, since a stranger that may open a file, a FIFO or a directory can hold its lock against the guard:

* `control_lock`, with a POSIX write lock for life, is 0600. One that a stock daemon left is 0666; any user may lock
  that and keep the lock. So a private lock of the guard excludes other guards, and this one only tells stock daemons
  that the directory is in use.
* The directory of second drivers has `ahead`, which no other user opens, and a page that all may read (move_page.py).
* There is no FIFO `log`: servers write to their lane's own. There is no pid file: that of 535 is not there either.
* The directory itself is 0711. With sockets from the service manager nothing is made or removed in it.
"""

import errno
import os
import socket
import stat
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from mpsguard.guard.broker import move_page, public_sockets
from mpsguard.guard.broker.move_page import MovePage
from mpsguard.guard.broker.public_sockets import MODES
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.files.file_lock import FileLock, LockHeldError
from mpsguard.linux.files.path_state import PathState, Repair, change, decide, leads_to
from mpsguard.linux.identity import is_root
from mpsguard.linux.processes import peer_user, procfs
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.bound_file import is_reached
from mpsguard.linux.sockets.listens import listens

MODE: Final = 0o711
"""Of the directory: a client connects to names that it knows."""

_LOCK: Final = "control_lock"
_AHEAD: Final = "ahead"
_ITSELF: Final = "."

P = TypeVar("P", Directory, FileLock, socket.socket)


class PublicDirectoryError(Exception):
    """The directory cannot be opened; one line says why."""


class Contents(NamedTuple):
    """All that a guard has in one public directory. Each part belongs to the `PublicDirectory`."""

    directory: Directory
    own_lock: FileLock
    lock: FileLock | None
    """None if a user that cannot run a daemon here holds it."""
    sockets: Mapping[str, socket.socket]
    """Those that the names lead to."""
    states: Mapping[str, PathState]
    """Of the directory (``.``), and of what it has."""
    way: tuple[Path, ...]
    """The directories above it that every user may pass."""

    def parts(self) -> set[Directory | FileLock | socket.socket]:
        """Return all that can be closed."""
        return {self.directory, self.own_lock, *self.sockets.values(), *([] if self.lock is None else [self.lock])}


class PublicDirectory:
    """Owns the contents of one public pipe directory.

    Sockets from the service manager are used as long as their names lead to them, and kept for the time when they do
    again. `changed` and `made_again` may be called on a thread, one at a time; all else belongs to the event loop.
    """

    def __init__(self, path: Path, lock: Path, *, ahead: int | None = None, page: MovePage | None = None) -> None:
        """Create it; `open` makes it.

        Args:
            path: the directory.
            lock: the guard's private lock file, in a directory where only the guard may create or open files.
            ahead: mode of a file `ahead`, which no user reads or writes: a user that may execute it may connect a
                second driver before a fault. None: there is no such file.
            page: what programs here are asked; None: nothing is.
        """
        self.path = path
        self._ahead = ahead
        self._page = page
        self._own_lock_path = lock
        self._contents: Contents | None = None
        self._given: dict[str, socket.socket] = {}
        """From the service manager, which has them too."""

    @property
    def sockets(self) -> Mapping[str, socket.socket]:
        """The listening sockets that the names lead to."""
        return self._contents.sockets if self._contents is not None else {}

    @property
    def listeners(self) -> tuple[tuple[str, socket.socket], ...]:
        """All listening sockets, with their names: also the service manager's that the names do not lead to now."""
        return tuple({(name, sock) for names in (self.sockets, self._given) for name, sock in names.items()})

    @property
    def held(self) -> bool:
        """Whether the service manager holds the sockets too, so that clients wait while no guard runs."""
        return bool(self.sockets) and self.sockets == self._given

    def open(self, given: dict[str, socket.socket]) -> None:
        """Open the directory: lock and sockets.

        Args:
            given: listening sockets by path; those of this directory are removed from it and used.

        Raises:
            PublicDirectoryError: it cannot be opened; nothing is kept.
        """
        for name in MODES:
            sock = given.pop(str(self.path / name), None)
            if sock is not None:
                # Peers that connected to an inherited socket before this may have sent descriptors: `StrangerStream`.
                seqpacket.let_descriptors_come(sock, allowed=False)
                self._given[name] = sock
        try:
            self._contents = self.made_again()
        except BaseException:
            self.close()
            raise

    def changed(self) -> str | None:
        """Return what is not as it was made, in words; None if all is."""
        contents = self._contents
        if contents is None:
            return None
        if closed := self._closed(contents):
            return closed
        try:
            with Directory.open(self.path) as found:
                for name, expected in contents.states.items():
                    what = change(expected, _state(found, name))
                    if what is not None:
                        return what if name == _ITSELF else f"{name} {what}"
        except FileNotFoundError:
            return "is gone"
        except OSError as error:
            return f"{error.filename or self.path}: {error.strerror}"
        return None if contents.own_lock.is_at(self._own_lock_path) else f"has lost its lock {self._own_lock_path}"

    def is_reached(self) -> bool:
        """Return whether a program that starts now, of any user, comes to this guard."""
        contents = self._contents
        if contents is None or self._closed(contents):
            return False
        try:
            with Directory.open(self.path) as found:
                states = [(contents.states[name], _state(found, name)) for name in (_ITSELF, "control")]
        except OSError:
            return False
        return all(
            now is not None and now.is_same_object(made) and now.permissions & made.permissions == made.permissions
            for made, now in states
        )

    def _closed(self, contents: Contents) -> str | None:
        """Return which directory above is closed to other users now, in words; None if none is."""
        for above in contents.way:
            with suppress(OSError):
                mode = above.stat().st_mode
                if not mode & stat.S_IXOTH:
                    return f"cannot be reached by other users: {above} has mode {stat.S_IMODE(mode):04o} now"
        return None

    def made_again(self) -> Contents:
        """Return what there is to have, with what stands of it and the rest made again; `replace` puts it in force.

        Raises:
            PublicDirectoryError: something is there that is not ours to remove, or it cannot be made.
        """
        old = self._contents
        if old is not None and (closed := self._closed(old)):
            raise PublicDirectoryError(closed)
        with ExitStack() as undo:
            try:
                directory = self._opened(old, undo)
                own_lock = self._own_locked(old, undo)
                lock = self._publicly_locked(old, directory, undo)
                sockets = {name: self._listening(old, directory, name, undo) for name in MODES}
                _remove_log(directory)
                self._mark(directory)
                if self._page is not None:
                    self._page.made(directory)
                more = [(_LOCK, lock), (_AHEAD, self._ahead), (move_page.NAME, self._page)]
                names = (_ITSELF, *MODES, *(name for name, there in more if there))
                states = {name: state for name in names if (state := _state(directory, name)) is not None}
            except LockHeldError as error:
                raise PublicDirectoryError(
                    f"{self.path}: process {error.pid} holds {error.path.name}; another guard or MPS control daemon "
                    f"runs here (stop it: echo quit | CUDA_MPS_PIPE_DIRECTORY={self.path} nvidia-cuda-mps-control)"
                ) from None
            except OSError as error:
                raise PublicDirectoryError(f"{error.filename or self.path}: {error.strerror}") from None
            undo.pop_all()
        return Contents(directory, own_lock, lock, sockets, states, old.way if old is not None else _way(self.path))

    def _opened(self, old: Contents | None, undo: ExitStack) -> Directory:
        """Return the directory, with its mode and owner; OSError."""
        if old is not None:
            expected, now = old.states[_ITSELF], _state(old.directory, _ITSELF)
            if now is not None and now != expected and leads_to(self.path, now):
                old.directory.give_itself(expected.permissions, owner=expected.uid, group=expected.gid)
        found = make(self.path)
        state = _state(found, _ITSELF)
        if old is not None and state is not None and state.is_same_object(old.states[_ITSELF]):
            found.close()
            return old.directory
        return _owned(undo, found)

    def _mark(self, directory: Directory) -> None:
        """Make the file that tells programs whether they may connect ahead; OSError."""
        if self._ahead is None:
            return
        found = directory.status(_AHEAD)
        if found is not None and stat.S_IMODE(found.st_mode) == self._ahead:
            return
        directory.remove(_AHEAD)
        os.close(directory.open_file(_AHEAD, os.O_WRONLY, self._ahead))

    def _own_locked(self, old: Contents | None, undo: ExitStack) -> FileLock:
        """Return the private lock, taken again if its file is another one; OSError, LockHeldError."""
        if old is not None and old.own_lock.is_at(self._own_lock_path):
            return old.own_lock
        # Made if it is missing: a drop-in's lies in the public directory.
        with Directory.make(self._own_lock_path.parent, MODE) as locks:
            return _owned(undo, FileLock.take(locks, self._own_lock_path.name))

    def _publicly_locked(self, old: Contents | None, directory: Directory, undo: ExitStack) -> FileLock | None:
        """Return the lock that stock daemons check, taken again if its file is another one; OSError, LockHeldError."""
        if old is not None and old.lock is not None and old.lock.is_at(self.path / _LOCK):
            expected = old.states[_LOCK]
            if _state(directory, _LOCK) != expected:
                directory.give(_LOCK, expected.permissions, owner=expected.uid, group=expected.gid)
            return old.lock
        lock = _take_public_lock(directory)
        return lock if lock is None else _owned(undo, lock)

    def _listening(self, old: Contents | None, directory: Directory, name: str, undo: ExitStack) -> socket.socket:
        """Return the socket that a name leads to, made if it leads to none of ours; OSError."""
        path = directory.path / name
        given = self._given.get(name)
        is_given = given is not None and is_reached(given, path)
        if old is None:
            return given if given is not None and is_given else _owned(undo, public_sockets.listen(directory, name))
        expected, found = old.states[name], _state(directory, name)
        is_ours = found is not None and any(found.is_same_object(each) for each in old.states.values())
        match decide(expected, found, is_served=not is_ours and listens(path)):
            case Repair.NOTHING:
                return old.sockets[name]
            case Repair.RESTORE:
                directory.give(name, expected.permissions, owner=expected.uid, group=expected.gid)
                return old.sockets[name]
            case _ if given is not None and is_given and not is_ours:
                return given
            case Repair.MAKE:
                return _owned(undo, public_sockets.listen(directory, name))
            case Repair.LEAVE:
                said = (
                    "another process listens there" if found and found.kind == "socket" else "is there and is no socket"
                )
                raise FileExistsError(errno.EEXIST, said, str(path))

    def replace(self, contents: Contents) -> tuple[socket.socket, ...]:
        """Put what `made_again` has returned in force; return the sockets that nothing leads to, to be closed.

        What was closed meanwhile stays closed.
        """
        old, self._contents = self._contents, contents
        if old is None:
            self.close()
            return ()
        unused = old.parts() - contents.parts() - set(self._given.values())
        for part in unused:
            if not isinstance(part, socket.socket):
                part.close()
        return tuple(part for part in unused if isinstance(part, socket.socket))

    def close(self) -> None:
        """Close and unlock everything. The sockets' files stay, as the stock daemon leaves them."""
        parts = self._contents.parts() if self._contents is not None else set()
        self._contents = None
        for part in parts | set(self._given.values()):
            if isinstance(part, socket.socket):
                public_sockets.close(part)
            else:
                part.close()
        self._given.clear()


def make(path: Path) -> Directory:
    """Return a public directory, made if it is missing, which no other user lists; OSError if one could change it."""
    directory = Directory.make(path, MODE)
    try:
        directory.narrow(MODE)
    except BaseException:
        directory.close()
        raise
    return directory


def _owned(undo: ExitStack, part: P) -> P:
    """Return a part that is closed if the others cannot be had."""
    undo.callback(part.close)
    return part


def _state(directory: Directory, name: str) -> PathState | None:
    found = directory.status(name)
    return None if found is None else PathState.of(found)


def _way(path: Path) -> tuple[Path, ...]:
    """Return the directories above a path that every user may pass."""
    return tuple(above for above in path.parents if above.stat().st_mode & stat.S_IXOTH)


def _take_public_lock(directory: Directory) -> FileLock | None:
    """Take the lock that stock daemons check; None if it is held by a user that cannot run a daemon here.

    The directory belongs to root or the guard's user: a daemon of another user could create no socket in it.
    """
    try:
        return FileLock.take(directory, _LOCK)
    except LockHeldError as error:
        with suppress(ProcessLookupError):
            if error.pid and not _may_run_a_daemon(error.pid):
                return None
        raise


def _remove_log(directory: Directory) -> None:
    """Remove the FIFO of a stock daemon or an earlier version, so that no program waits for a reader of it."""
    found = directory.status("log")
    if found is not None and stat.S_ISFIFO(found.st_mode):
        directory.remove("log")


def _may_run_a_daemon(pid: int) -> bool:
    """Return whether a process is root's or the guard's user's; ProcessLookupError if there is none."""
    user = peer_user.user_of(pid, procfs.uid(pid)[0])
    return is_root(user) or user == os.geteuid()
