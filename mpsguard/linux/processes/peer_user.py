"""The user of a process: a uid; and with uid 0, whether it is root of this machine or root of a container.

Root of a container without a user namespace has the kernel's uid 0, and the files of root. What it lacks is the rest:
it is another user (`mpsguard.linux.identity.UserKey`). Root of this machine is a process that

* has CAP_SYS_ADMIN, if this process has it,
* in this process' own user namespace,
* and its pid namespace,
* and is in no pod's or container's control group, unless this process is in the same one.

Mount namespaces are not compared: a service has one of its own (`ProtectSystem=`), and a process with all of the above
can enter any. A process that cannot be looked at is no root.
"""

import errno
import fcntl
import os
import select
import socket
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from mpsguard.linux.cgroup_origin import CgroupOrigin, origin
from mpsguard.linux.identity import CONTAINER_ROOT, ROOT, Credentials, UserKey
from mpsguard.linux.processes import privileges, procfs
from mpsguard.linux.processes.privileges import Capability
from mpsguard.linux.processes.process import open_pidfd, tell_apart
from mpsguard.linux.sockets import accepting, seqpacket

_GET_NAMESPACE: Final = {"user": 0xFF09, "pid": 0xFF05}
"""PIDFD_GET_USER_NAMESPACE and its like, include/uapi/linux/pidfd.h, Linux 6.11: a descriptor of it. Unlike a
link of /proc/PID/ns, it does not wait for an execve(2) of the process."""
_NO_SUCH_REQUEST: Final = frozenset({errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP})
_BEYOND: Final = 1 << 48
"""Numbers for pods and containers. Few enough that every reader of JSON keeps all digits."""
_MAX_CGROUP: Final = 65536


_REMEMBERED: Final = 1024
_container_roots: Final[dict[int, UserKey]] = {}
"""Users of processes by the inode of their pidfd, which no other process has as long as the machine runs."""


_origin: Final = lru_cache(256)(origin)


class _Groups(NamedTuple):
    """What the control groups of a process say."""

    origins: frozenset[CgroupOrigin]
    """The pods and containers that made them."""
    is_outside: bool
    """Whether one is outside of our cgroup namespace, so that what made it is not known."""


def peer_of(sock: socket.socket) -> Credentials:
    """Return the process at the other end of a connection, with its user. Never waits.

    Before Linux 6.5 the kernel has no pidfd of the peer to give. There, a number that another process has got since
    the connection was made is that one's.
    """
    peer = seqpacket.peer(sock)
    return peer if peer.uid != ROOT else _with_user(sock, peer)


def peer_of_accepted(fd: int, peer: Credentials) -> Credentials:
    """See `peer_of`; ``fd`` of a connection that stays the caller's, ``peer`` as its `Acceptor` has told it."""
    if peer.uid != ROOT:
        return peer
    sock = accepting.as_socket(fd)
    try:
        return _with_user(sock, peer)
    finally:
        sock.detach()


def _with_user(sock: socket.socket, peer: Credentials) -> Credentials:
    """Return the process with uid 0 at the other end of a connection, with its user."""
    pidfd = seqpacket.peer_pidfd(sock)
    if pidfd is None and _has_peer_pidfd():
        return msgspec.structs.replace(peer, container_root=CONTAINER_ROOT)
    try:
        user = user_of(peer.pid, peer.uid, pidfd)
    finally:
        if pidfd is not None:
            os.close(pidfd)
    return peer if user == ROOT else msgspec.structs.replace(peer, container_root=user)


def user_of(pid: int, uid: int, pidfd: int | None = None) -> UserKey:
    """Return the user of a process that has ``uid``. Never waits.

    Args:
        pid: the process; 0 for one that our pid namespace has no number for.
        uid: what the kernel said, of the process or of its connection.
        pidfd: of the process, and still the caller's; None: that of the process with the number ``pid`` now.
    """
    if uid != ROOT:
        return UserKey(uid)
    if pid <= 0:
        return CONTAINER_ROOT
    if pidfd is not None:
        return _user_of_root(pid, pidfd)
    try:
        opened = open_pidfd(pid)
    except OSError:
        return CONTAINER_ROOT
    try:
        return _user_of_root(pid, opened)
    finally:
        os.close(opened)


def credentials_of(pid: int, pidfd: int) -> Credentials:
    """Return a process that connected to no socket of ours, with its user; ProcessLookupError if there is none.

    ``pidfd``: of the process, and still the caller's.
    """
    uid, gid = procfs.uid(pid)
    user = user_of(pid, uid, pidfd)
    return Credentials(pid, uid, gid, None if user == uid else user)


def is_admin(sock: socket.socket) -> bool:
    """Return whether the process at the other end has CAP_SYS_ADMIN in our user namespace, in whichever container."""
    pid, pidfd = seqpacket.peer(sock).pid, seqpacket.peer_pidfd(sock)
    if pidfd is None:
        return False
    try:
        return _is_here("user", pid, pidfd) and _has_admin(pid) and _is_alive(pidfd)
    except (OSError, ValueError, LookupError):
        return False
    finally:
        os.close(pidfd)


def _user_of_root(pid: int, pidfd: int) -> UserKey:
    """Return the user of the process of a pidfd, which has uid 0 and the number ``pid``."""
    if not tell_apart():
        return _look(pid, pidfd)[0]
    inode = os.fstat(pidfd).st_ino
    known = _container_roots.get(inode)
    if known is not None:
        return known
    found, is_certain = _look(pid, pidfd)
    if found != ROOT and is_certain:
        # That a process is root of a container is remembered, so that its floods cost little. That it is root of the
        # machine is not: it may enter a container.
        _container_roots[inode] = found
        if len(_container_roots) > _REMEMBERED:
            del _container_roots[next(iter(_container_roots))]
    return found


def _look(pid: int, pidfd: int) -> tuple[UserKey, bool]:
    """Return a user, and whether it is certain: a process that could not be looked at is asked again."""
    ours = _our_groups()
    try:
        groups = _groups(pid)
        # All of these cost the same whatever the process has made of itself, before its user is known and charged.
        is_root = (
            groups.origins <= ours.origins
            and not groups.is_outside
            and (not _has_admin(os.getpid()) or _has_admin(pid))
            and _is_here("pid", pid, pidfd)
            and _is_here("user", pid, pidfd)
        )
    except (OSError, ValueError, LookupError):
        return CONTAINER_ROOT, False
    # What was read by number is this process' only if it has not ended since.
    if not _is_alive(pidfd):
        return CONTAINER_ROOT, False
    return ROOT if is_root else _key(groups.origins), True


def _key(origins: frozenset[CgroupOrigin]) -> UserKey:
    """Return the user for root of a pod, or of a container in none."""
    names = sorted(each.pod or each.container or "" for each in origins)
    if not names:
        return CONTAINER_ROOT
    digest = blake2b(names[0].encode(), digest_size=6).digest()
    return UserKey(CONTAINER_ROOT + 1 + int.from_bytes(digest) % (_BEYOND - 1))


def _groups(pid: int | str) -> _Groups:
    paths = set(procfs.cgroup_paths(_cgroup(pid)).values())
    found = [_origin(path) for path in paths]
    return _Groups(
        origins=frozenset(
            # All containers of a pod are one.
            CgroupOrigin(pod=each.pod) if each.pod else CgroupOrigin(container=each.container)
            for each in found
            if each.pod or each.container
        ),
        is_outside=any(path.startswith("/..") for path in paths),
    )


def _cgroup(pid: int | str) -> bytes:
    """Read all of it: a process may be in a dozen hierarchies."""
    fd = os.open(f"/proc/{pid}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, _MAX_CGROUP)
        if os.read(fd, 1):
            raise ValueError("too long for a list of control groups")
    finally:
        os.close(fd)
    return text


def _has_admin(pid: int) -> bool:
    """Return whether a process has CAP_SYS_ADMIN, in its own user namespace."""
    return bool(privileges.effective(pid) & 1 << Capability.SYS_ADMIN)


def _is_here(kind: str, pid: int, pidfd: int) -> bool:
    """Return whether a process is in our own namespace of a kind."""
    try:
        namespace = fcntl.ioctl(pidfd, _GET_NAMESPACE[kind])
    except OSError as error:
        if error.errno not in _NO_SUCH_REQUEST:
            raise
        if kind == "pid":
            # Its numbers in our own pid namespace, and in each below it that it is in. A link would wait.
            return len(procfs.status_of(procfs.read_short(f"/proc/{pid}/status"))["NSpid"]) == 1
        about = os.stat(f"/proc/{pid}/ns/{kind}")  # noqa: PTH116 - pathlib makes more system calls
    else:
        try:
            about = os.fstat(namespace)
        finally:
            os.close(namespace)
    return (about.st_dev, about.st_ino) == _our_namespace(kind)


@cache
def _our_groups() -> _Groups:
    return _groups("self")


@cache
def _our_namespace(kind: str) -> tuple[int, int]:
    about = os.stat(f"/proc/self/ns/{kind}")  # noqa: PTH116
    return about.st_dev, about.st_ino


@cache
def _has_peer_pidfd() -> bool:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        pidfd = seqpacket.peer_pidfd(one)
    if pidfd is None:
        return False
    os.close(pidfd)
    return True


def _is_alive(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return not poller.poll(0)
