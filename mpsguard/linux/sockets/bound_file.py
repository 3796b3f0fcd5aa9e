"""Whether a listening unix socket is still the one that its path leads to: the name can be removed or bound again."""

import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import Final

_SIOCUNIXFILE: Final = 0x89E0
"""include/uapi/linux/un.h: a descriptor (O_PATH) of the file that a socket was bound to. It takes CAP_NET_ADMIN."""
_CREDENTIALS: Final = struct.Struct("3i")


def is_reached(listener: socket.socket, path: Path) -> bool:
    """Return whether a connection to ``path`` comes to this listener.

    Without CAP_NET_ADMIN it is enough that it comes to a listener of the same process: the one that called listen(2).
    """
    try:
        fd = fcntl.ioctl(listener, _SIOCUNIXFILE)
    except OSError:
        return _reaches_its_process(listener, path)
    try:
        bound = os.fstat(fd)
        found = path.lstat()
    except FileNotFoundError:
        return False
    finally:
        os.close(fd)
    return (bound.st_dev, bound.st_ino) == (found.st_dev, found.st_ino)


def _reaches_its_process(listener: socket.socket, path: Path) -> bool:
    with socket.socket(listener.family, listener.type | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.connect(str(path))
        except BlockingIOError:
            # A full backlog: some process listens, and its connections wait as they do at ours.
            return True
        except OSError:
            return False
        return _peer(probe) == _peer(listener)


def _peer(sock: socket.socket) -> int:
    """Return the pid that the kernel has for the other end; of a listener, that of the process that listens."""
    pid, _, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid)
