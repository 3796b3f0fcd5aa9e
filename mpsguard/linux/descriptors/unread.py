"""Descriptors that were sent on an AF_UNIX socket and not yet read by the peer, bounded."""

import array
import fcntl
import socket
import termios
from typing import Final

UNREAD_FDS_MOST: Final = 506
"""Two packets with as many descriptors as the kernel passes at once (SCM_MAX_FD, 253): the peer can read one while the
next is on its way, and what one connection can leave unread stays small."""


class UnreadFds:
    """Counts the descriptors sent on one socket since its peer had last read all of it."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._count = 0

    def has_room(self, count: int) -> bool:
        """Whether a packet with ``count`` descriptors may be sent now."""
        if self._count and not _unread_bytes(self._socket):
            self._count = 0
        return not self._count or self._count + count <= UNREAD_FDS_MOST

    def sent(self, count: int) -> None:
        """Count a packet that was sent."""
        self._count += count


def _unread_bytes(sock: socket.socket) -> int:
    # SIOCOUTQ, which is TIOCOUTQ: for AF_UNIX the memory of all packets that the peer has not taken.
    answer = array.array("i", [0])
    fcntl.ioctl(sock, termios.TIOCOUTQ, answer)
    return answer[0]
