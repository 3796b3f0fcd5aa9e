"""System calls on sockets of strangers that never wait, made without giving up the interpreter's lock.

Python's own give it up around each system call, and get it back when the other threads let them: beside busy ones, most
of the time of accepting a connection was that. The more processors, the worse: the other thread really runs.

They take descriptors. A socket object costs as much as accepting the connection, and a flood's are closed unserved.
"""

import ctypes
import os
import select
import socket
from typing import Final

from mpsguard.linux.identity import Credentials
from mpsguard.linux.sockets.seqpacket import SO_PASSRIGHTS


class _PollFd(ctypes.Structure):
    """struct pollfd of poll(2)."""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


class _Ucred(ctypes.Structure):
    """struct ucred of unix(7)."""

    _fields_ = (("pid", ctypes.c_int), ("uid", ctypes.c_int), ("gid", ctypes.c_int))


_libc: Final = ctypes.PyDLL(None, use_errno=True)
"""Its functions are called with the interpreter's lock held."""
_libc.accept4.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_libc.close.argtypes = (ctypes.c_int,)
_libc.getsockopt.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_libc.poll.argtypes = (ctypes.POINTER(_PollFd), ctypes.c_ulong, ctypes.c_int)


def accept(listener: socket.socket) -> int:
    """Accept a connection at a non-blocking listener; it does not block either, and belongs to the caller.

    Raises:
        BlockingIOError: none waits.
        OSError: as accept4(2), such as for want of descriptors.
    """
    fd = _libc.accept4(listener.fileno(), None, None, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(fd)


def as_socket(fd: int) -> socket.socket:
    """Return the socket object that a connection belongs to from now on."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK, 0, fd)


def peer(fd: int) -> Credentials:
    """See `seqpacket.peer`."""
    told = _Ucred()
    _getsockopt(fd, socket.SO_PEERCRED, told)
    return Credentials(told.pid, told.uid, told.gid)


def takes_descriptors(fd: int) -> bool:
    """Return whether the peer may have sent descriptors: to be asked before `seqpacket.let_descriptors_come`."""
    told = ctypes.c_int()
    try:
        _getsockopt(fd, SO_PASSRIGHTS, told)
    except OSError:
        return True
    return bool(told.value)


def has_left(fd: int) -> bool:
    """Return whether the peer of a connection has closed it; what it sent before may still be read."""
    state = _PollFd(fd, 0, 0)
    return _libc.poll(ctypes.byref(state), 1, 0) > 0 and bool(state.revents & (select.POLLHUP | select.POLLERR))


def close(fd: int) -> None:
    """Close a connection on which no descriptors can have come: closing these, queued in it, could take long.

    Nothing is done with -1, which a socket's ``detach`` returns if it was closed before.
    """
    if fd >= 0:
        _libc.close(fd)


def _getsockopt(fd: int, option: int, told: _Ucred | ctypes.c_int) -> None:
    length = ctypes.c_uint(ctypes.sizeof(told))
    if _libc.getsockopt(fd, socket.SOL_SOCKET, option, ctypes.byref(told), ctypes.byref(length)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
