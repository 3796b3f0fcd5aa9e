"""A socket that does not close: for attackers, which import it before they become another user."""

import socket
import struct
from contextlib import suppress

LINGERS = 3600
"""Seconds."""


def lingering(seconds: int = LINGERS) -> tuple[socket.socket, socket.socket]:
    """Return a TCP socket that lingers for `seconds` at its last close, and its peer.

    It has sent what the peer does not read. The caller must keep the peer.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Not create_connection: it imports what a user may not be able to read.
        ours = socket.socket()
        ours.connect(listener.getsockname())
        peer, _ = listener.accept()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    ours.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            ours.send(bytes(1 << 16))
    return ours, peer
