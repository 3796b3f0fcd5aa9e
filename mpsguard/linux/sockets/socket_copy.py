"""A socket of one's own over a descriptor that another process gave, of any kind."""

import os
import socket


def socket_copy(fd: int) -> socket.socket:
    """A socket over a copy of ``fd``, which stays the caller's; OSError if it is no socket."""
    copy = os.dup(fd)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        # The constructor leaves to the caller what it does not take.
        os.close(copy)
        raise
