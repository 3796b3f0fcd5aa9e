"""System calls on sockets of strangers that never wait, made without giving up the interpreter's lock.

Python's own give it up around each system call, and get it back when the other threads let them: beside busy ones, most
of the time of accepting a connection was that. The more processors, the worse: the other thread really runs.

They take descriptors. A socket object costs as much as accepting the connection, and a flood's are closed unserved.
"""

import ctypes
import errno
import math
import os
import select
import socket
import time
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
_accept4: Final = _libc.accept4
_close: Final = _libc.close
_getsockopt: Final = _libc.getsockopt

_FLAGS: Final = int(socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
_SETTLING: Final = 1.0
"""Seconds after which a connect(2) that had copied the listener's options before they were set is in its queue: it
holds a spin lock in between."""


class Acceptor:
    """Accepts the connections of one listener, on one thread; the listener stays its owner's.

    The kernel's answers come into memory that is made once: a flood pays for each object.
    """

    def __init__(self, listener: socket.socket) -> None:
        """``listener``: a non-blocking one."""
        self.listener: Final = listener
        self._told = _Ucred()
        self._told_to = ctypes.byref(self._told)
        self._length_to = ctypes.byref(ctypes.c_uint(ctypes.sizeof(_Ucred)))
        self._settled = time.monotonic() + _SETTLING if not takes_descriptors(listener.fileno()) else math.inf
        self.are_sealed = False
        """Whether none of the peers accepted from now on can have sent descriptors: the listener let none come, and
        all that had connected before have been accepted."""

    def accept(self) -> tuple[int, Credentials]:
        """Accept a connection without blocking; it does not block either, and belongs to the caller.

        Returns:
            Its descriptor; and the process that made it, with the user that it had then.

        Raises:
            BlockingIOError: none waits.
            OSError: as accept4(2), such as for want of descriptors.
        """
        fd = _accept4(self.listener.fileno(), None, None, _FLAGS)
        if fd < 0:
            number = ctypes.get_errno()
            if number == errno.EAGAIN and not self.are_sealed:
                self.are_sealed = time.monotonic() > self._settled
            raise OSError(number, os.strerror(number))
        if _getsockopt(fd, socket.SOL_SOCKET, socket.SO_PEERCRED, self._told_to, self._length_to) < 0:
            number = ctypes.get_errno()
            os.close(fd)
            raise OSError(number, os.strerror(number))
        told = self._told
        return fd, Credentials(told.pid, told.uid, told.gid)


def as_socket(fd: int) -> socket.socket:
    """Return the socket object that a connection belongs to from now on."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK, 0, fd)


def takes_descriptors(fd: int) -> bool:
    """Return whether the peer may have sent descriptors: to be asked before `seqpacket.let_descriptors_come`."""
    told, length = ctypes.c_int(), ctypes.c_uint(ctypes.sizeof(ctypes.c_int))
    failed = _getsockopt(fd, socket.SOL_SOCKET, SO_PASSRIGHTS, ctypes.byref(told), ctypes.byref(length))
    return bool(failed or told.value)


def has_left(fd: int) -> bool:
    """Return whether the peer of a connection has closed it; what it sent before may still be read."""
    state = _PollFd(fd, 0, 0)
    return _libc.poll(ctypes.byref(state), 1, 0) > 0 and bool(state.revents & (select.POLLHUP | select.POLLERR))


def close(fd: int) -> None:
    """Close a connection on which no descriptors can have come: closing these, queued in it, could take long.

    Nothing is done with -1, which a socket's ``detach`` returns if it was closed before.
    """
    if fd >= 0:
        _close(fd)
