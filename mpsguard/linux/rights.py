"""Whether a socket takes file descriptors from its peer (SO_PASSRIGHTS, Linux 6.16)."""

import socket
from typing import Final

SO_PASSRIGHTS: Final = 83
"""asm-generic/socket.h. Without it a peer's sendmsg(2) with SCM_RIGHTS fails (EPERM), and nothing is queued."""


def take_rights(sock: socket.socket, *, take: bool) -> bool:
    """Let the peer of an AF_UNIX socket pass descriptors, or not; connections inherit it from their listener.

    Returns:
        Whether the kernel knows the option. An older one always takes them.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, int(take))
    except OSError:
        return False
    return True
