"""Directories that root works in by name, opened part by part: no link, name or mode of another user leads elsewhere.

The directory must belong to root or to this process's user, and no other user may write in it; a group may that has the
owner alone (`private_group`). For root that holds of
each directory on the way, too, but that a sticky one such as /tmp may be there; links are followed if root made them
where no other user can make names. So no stranger can change where a path leads that was opened here, and what is done
in the directory goes by its descriptor. A process of another user risks its own files alone, and homes often lie in
directories of third users: there the last directory decides.

Calls that the directory's state does not need are not made. Each of mkdir, unlink, bind and chmod takes a lock of the
directory or the file, and a process that may read the directory, or write to the file, can hold that lock for as long
as it likes (docs/concepts/security.md).
"""

import errno
import os
import socket
import stat
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from mpsguard.linux.closing import Closing
from mpsguard.linux.files import private_group

_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS_MOST: Final = 40
"""As the kernel has it."""
_SYSTEM_GROUPS: Final = frozenset(range(1000)) - {100}
"""Groups of services: /var/log is writable to one of them on Ubuntu. Not `users`, in which Debian puts every user."""
_OTHERS_WRITE: Final = 0o022
_OWN_DEPTH: Final = 3
"""Parts of a path, its root too, from which on a directory may be narrowed: /run and /tmp are not ours to change."""


class Directory(Closing):
    """Owns a descriptor (O_PATH) of a directory in which root and this user alone make names."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def open(cls, path: Path, *, shared: bool = False) -> Self:
        """Open an existing directory; ``shared``: one in which every user may write.

        Raises:
            FileNotFoundError: it is missing, and another user can change nothing above it.
            OSError: another user could change it or where its path leads, or it is no directory.
        """
        return cls(path, _walk(path, None, shared=shared))

    @classmethod
    def make(cls, path: Path, mode: int) -> Self:
        """Open a directory, made with ``mode`` if it is missing, and its parents so that no other user can list them.

        An existing one keeps its mode. With a sticky ``mode`` it may be one in which every user writes. Errors as in
        `open`.
        """
        return cls(path, _walk(path, mode, shared=bool(mode & stat.S_ISVTX)))

    def close(self) -> None:
        """Close the descriptor; safe to call twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def narrow(self, mode: int) -> None:
        """Take away what ``mode`` does not allow, where the directory is this user's and below the top of the tree."""
        status = os.fstat(self.fd)
        if status.st_uid == os.geteuid() and len(self.path.parts) >= _OWN_DEPTH:
            self._change(status, stat.S_IMODE(status.st_mode) & mode, status.st_gid)

    def allow(self, mode: int, group: int) -> None:
        """Give it exactly this mode and group."""
        self._change(os.fstat(self.fd), mode, group)

    def _change(self, status: os.stat_result, mode: int, group: int) -> None:
        if (stat.S_IMODE(status.st_mode), status.st_gid) != (mode, group):
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
            try:
                _own(fd, mode, group, status)
            finally:
                os.close(fd)

    def status(self, name: str) -> os.stat_result | None:
        """Return what the name itself is, links not followed; None if there is none such."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open_file(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Open a regular file, made with exactly ``mode`` if it is missing.

        Raises:
            OSError: the name is something else, or another user's.
        """
        while True:
            found = self.status(name)
            if found is not None:
                self._check_file(name, found)
                return os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self.fd)
            with suppress(FileExistsError):
                fd = os.open(name, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode, dir_fd=self.fd)
                try:
                    os.fchmod(fd, mode)
                except BaseException:
                    os.close(fd)
                    raise
                return fd

    def _check_file(self, name: str, found: os.stat_result) -> None:
        where = str(self.path / name)
        if not stat.S_ISREG(found.st_mode):
            raise FileExistsError(errno.EEXIST, "is there and is no regular file", where)
        if found.st_uid not in _trusted():
            raise PermissionError(errno.EPERM, _foreign(found.st_uid), where)

    def write(self, name: str, data: bytes, mode: int) -> None:
        """Make a file in the place of one that is there, complete as soon as it has its name."""
        draft = f"{name}.new"
        self.remove(draft)
        fd = self.open_file(draft, os.O_WRONLY, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        self.check_unheld(name)
        os.rename(draft, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Remove what is no directory; nothing happens if it is missing.

        Raises:
            PermissionError: other users may write to the file, so that one of them could hold its lock against this.
        """
        if self.check_unheld(name):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.fd)

    def check_unheld(self, name: str) -> bool:
        """Return whether the name is there; PermissionError if another user may hold the lock of the file."""
        found = self.status(name)
        if found is None:
            return False
        if stat.S_ISREG(found.st_mode) and (found.st_mode & _OTHERS_WRITE or found.st_uid not in _trusted()):
            raise PermissionError(errno.EPERM, "other users may write to it; remove it", str(self.path / name))
        return True

    def link(self, name: str, target: str) -> None:
        """Make a symbolic link in the place of what has the name."""
        found = self.status(name)
        if found is not None and stat.S_ISLNK(found.st_mode) and os.readlink(name, dir_fd=self.fd) == target:
            return
        self.remove(name)
        os.symlink(target, name, dir_fd=self.fd)

    def bind(self, sock: socket.socket, name: str, mode: int, group: int | None = None) -> None:
        """Bind a unix socket in the place of one that is there. It never has a wider mode than ``mode``.

        The caller excludes other processes that listen there. By path, since its peers see the address; no stranger can
        change where that leads.
        """
        found = self.status(name)
        path = self.path / name
        if found is not None and not stat.S_ISSOCK(found.st_mode):
            raise FileExistsError(errno.EEXIST, "is there and is no socket", str(path))
        self.remove(name)
        # Not by the umask, which is the whole process's: other threads make files meanwhile.
        os.fchmod(sock.fileno(), mode & 0o700)
        sock.bind(str(path))
        self.give(name, mode, group=-1 if group is None else group)

    def give(self, name: str, mode: int, *, owner: int = -1, group: int = -1) -> None:
        """Change owner, group and mode of what has the name, in this order; links are not followed."""
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            _give(fd, mode, owner, group)
        finally:
            os.close(fd)

    def give_itself(self, mode: int, *, owner: int, group: int) -> None:
        """Change owner, group and mode of the directory, also where it may not be opened any more."""
        _give(self.fd, mode, owner, group)


def replace_file(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of ``path``, for this user alone; OSError, and the file is as it was.

    A reader finds what was there before or what is there now, also after a crash. After a power failure it may still be
    as it was: the directory is not waited for.
    """
    with Directory.make(path.parent, 0o700) as directory:
        directory.write(path.name, data, 0o600)


def _give(fd: int, mode: int, owner: int, group: int) -> None:
    """Change what a descriptor (O_PATH) leads to."""
    link = Path(f"/proc/self/fd/{fd}")
    if (owner, group) != (-1, -1):
        os.chown(link, owner, group)
    link.chmod(mode)


def _walk(path: Path, mode: int | None, *, shared: bool) -> int:
    """Return a descriptor of a directory; with ``mode``, missing ones are made."""
    if not path.is_absolute():
        path = Path.cwd() / path
    todo = deque(path.parts[1:])
    links = 0
    at = _root()
    try:
        where = Path("/")
        _check(where, os.fstat(at), is_last=not todo)
        while todo:
            name = todo.popleft()
            found = _look(at, name)
            if found is None and mode is not None:
                _make(at, name, mode if not todo else 0o711, where / name)
                found = _look(at, name)
            if found is not None and stat.S_ISLNK(found.st_mode):
                links += 1
                target = _target(at, name, where, found, links)
                todo.extendleft(reversed([part for part in target.parts if part != "/"]))
                if target.is_absolute():
                    os.close(at)
                    at, where = _root(), Path("/")
                continue
            where /= name
            try:
                below = os.open(name, _STEP, dir_fd=at)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(where)) from None
            os.close(at)
            at = below
            _check(where, os.fstat(at), is_last=not todo, shared=shared)
    except BaseException:
        os.close(at)
        raise
    return at


def _root() -> int:
    return os.open("/", _STEP)


def _look(at: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _make(at: int, name: str, mode: int, where: Path) -> None:
    try:
        # With its mode at once: a process that is killed here must not leave one that no client can pass.
        os.mkdir(name, mode, dir_fd=at)
    except FileExistsError:
        return
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(where)) from None
    else:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        try:
            os.fchmod(fd, mode)
        finally:
            os.close(fd)


def _target(at: int, name: str, where: Path, found: os.stat_result, links: int) -> Path:
    """Return where a link leads that root or this user made; OSError for one that another user could have put there."""
    link = str(where / name)
    if links > _LINKS_MOST:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), link)
    if os.geteuid() != 0:
        return Path(os.readlink(name, dir_fd=at))
    if found.st_uid not in _trusted():
        raise PermissionError(errno.EPERM, f"is a link that {_foreign(found.st_uid)}", link)
    # A sticky directory keeps a name, and does not say that it was not a link from elsewhere, with root's uid.
    if _has_writers(os.fstat(at)):
        raise PermissionError(errno.EPERM, "is a link in a directory in which other users may write", link)
    return Path(os.readlink(name, dir_fd=at))


def _check(where: Path, status: os.stat_result, *, is_last: bool, shared: bool = False) -> None:
    """Raise PermissionError if another user could make or replace names in a directory."""
    if not is_last and os.geteuid() != 0:
        return
    if status.st_uid not in _trusted():
        raise PermissionError(errno.EPERM, _foreign(status.st_uid), str(where))
    if is_last and shared:
        return
    if is_last:
        by_group = status.st_mode & stat.S_IWGRP and status.st_gid != 0
        # Asked last: the account database may be a service.
        strangers = by_group and not private_group.is_private(status.st_uid, status.st_gid)
        refused = bool(status.st_mode & stat.S_IWOTH or strangers)
    else:
        refused = not status.st_mode & stat.S_ISVTX and _has_writers(status)
    if refused:
        raise PermissionError(
            errno.EPERM, f"other users may write in it (mode {stat.S_IMODE(status.st_mode):04o})", str(where)
        )


def _has_writers(status: os.stat_result) -> bool:
    """Return whether users other than services make names in a directory of a trusted user."""
    return bool(
        status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and status.st_gid not in _SYSTEM_GROUPS)
    )


def _own(fd: int, mode: int, group: int, status: os.stat_result) -> None:
    if status.st_gid != group:
        os.fchown(fd, -1, group)
    os.fchmod(fd, mode)


def _trusted() -> tuple[int, int]:
    return 0, os.geteuid()


def _foreign(uid: int) -> str:
    own = "" if os.geteuid() == 0 else f" or uid {os.geteuid()}'s"
    return f"belongs to uid {uid}, must be root's{own}"
