"""The sockets of a public directory: made, taken over from the service manager, and closed.

Peers are strangers, and may have sent descriptors that nothing has read yet.
"""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mpsguard.linux.descriptors import fd_closer
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.sockets import accepting, seqpacket
from mpsguard.linux.sockets.bound_file import is_reached

MODES: Final = {"control": 0o666, "control_privileged": 0o755}
"""The public sockets and their modes."""

_BACKLOG: Final = 4096
"""Connections in the kernel's queue; net.core.somaxconn caps it. Clients wait there while a guard restarts."""


def listen(directory: Directory, name: str) -> socket.socket:
    """Return a public socket in the place of one that is there; the caller excludes others that listen. OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        seqpacket.let_descriptors_come(sock, allowed=False)
        directory.bind(sock, name, MODES[name])
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def adopt_sockets(fds: Mapping[int, str]) -> dict[str, socket.socket]:
    """Return the SEQPACKET listeners among inherited descriptors, by their path; close the others.

    Of several with one path it is the one that the path leads to: the service manager may have old ones as well.
    """
    found: dict[str, socket.socket] = {}
    for fd in fds:
        try:
            sock = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
            continue
        path = sock.getsockname() if sock.family == socket.AF_UNIX else None
        listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if sock.type == socket.SOCK_SEQPACKET and isinstance(path, str) and path and listening:
            sock.setblocking(False)
            if path in found and is_reached(sock, Path(path)):
                found[path], sock = sock, found[path]
            if path not in found:
                found[path] = sock
                continue
        sock.close()
    return found


def close(sock: socket.socket) -> None:
    """Close a listening socket, the connections in its backlog, and the descriptors that their peers have sent."""
    if sock.fileno() >= 0 and accepting.takes_descriptors(sock.fileno()):
        fd_closer.of_strangers((sock.detach(),))
    sock.close()
