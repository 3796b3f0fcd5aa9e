"""System calls on sockets of strangers that never wait, made without giving up the interpreter's lock.

Python's own give it up around each system call, and get it back when the other threads let them: beside busy ones, most
of the time of accepting a connection was that. The more processors, the worse: the other thread really runs.
"""

import ctypes
import os
import select
import socket
from typing import Final


class _PollFd(ctypes.Structure):
    """struct pollfd of poll(2)."""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


_libc: Final = ctypes.PyDLL(None, use_errno=True)
"""Its functions are called with the interpreter's lock held."""
_libc.accept4.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_libc.close.argtypes = (ctypes.c_int,)
_libc.poll.argtypes = (ctypes.POINTER(_PollFd), ctypes.c_ulong, ctypes.c_int)


def accept(listener: socket.socket) -> socket.socket:
    """Accept a connection at a non-blocking listener; the connection does not block either.

    Raises:
        BlockingIOError: none waits.
        OSError: as accept4(2), such as for want of descriptors.
    """
    fd = _libc.accept4(listener.fileno(), None, None, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK, 0, fd)


def has_left(connection: socket.socket) -> bool:
    """Return whether the peer of a connection has closed it; what it sent before may still be read."""
    state = _PollFd(connection.fileno(), 0, 0)
    return _libc.poll(ctypes.byref(state), 1, 0) > 0 and bool(state.revents & (select.POLLHUP | select.POLLERR))


def close(connection: socket.socket) -> None:
    """Close a connection on which no descriptors can have come: closing these, queued in it, could take long."""
    fd = connection.detach()
    if fd >= 0:
        _libc.close(fd)
