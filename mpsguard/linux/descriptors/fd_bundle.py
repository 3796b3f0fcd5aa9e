"""A bundle: any number of descriptors kept behind a single one.

It is a socket with a closed peer and a queue of messages with descriptors. The owner of the socket keeps them
all, and needs to know nothing of what is in it; that is what makes a bundle fit for systemd's descriptor store, which
counts descriptors and is slow with many of them. Looking into a bundle takes nothing out.

What lies in a queue counts as "in flight" for the user that sent it: the kernel refuses more than RLIMIT_NOFILE of them
unless the sender has CAP_SYS_RESOURCE or CAP_SYS_ADMIN (unix(7), ETOOMANYREFS).
"""

import errno
import os
import socket
from collections.abc import Sequence
from typing import Final, NamedTuple

from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.seqpacket import KERNEL_MAX_FDS

SO_PEEK_OFF: Final = 42
"""asm-generic/socket.h: where the next look into the queue begins, in bytes; 0 is its front."""

_LABEL_LIMIT: Final = 256


class FdBundle(NamedTuple):
    """A packed bundle; both sockets belong to the caller."""

    kept: socket.socket
    """What is to be kept."""
    receipt: socket.socket
    """Its peer: it hangs up when the bundle is kept no more."""


def pack(label: bytes, fds: Sequence[int]) -> FdBundle:
    """Put copies of ``fds`` into a new bundle, in their order, under a label of 1 to 256 bytes.

    OSError (ETOOMANYREFS, EMFILE, ENOBUFS) if the kernel takes no more.
    """
    kept, receipt = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        for start in range(0, max(len(fds), 1), KERNEL_MAX_FDS):
            seqpacket.send(receipt, label, fds=tuple(fds[start : start + KERNEL_MAX_FDS]))
        receipt.shutdown(socket.SHUT_WR)
    except BlockingIOError:
        kept.close()
        receipt.close()
        raise OSError(errno.ENOBUFS, "too many messages for one bundle") from None
    except BaseException:
        kept.close()
        receipt.close()
        raise
    return FdBundle(kept, receipt)


def unpack(kept: socket.socket) -> tuple[bytes, tuple[int, ...]]:
    """The label of a bundle and copies of its descriptors, which belong to the caller; the bundle stays as it is.

    OSError if it is none, or if there is no room for all of its descriptors in this process.
    """
    fds: list[int] = []
    label = b""
    try:
        kept.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 0)
        while True:
            packet = seqpacket.receive(
                kept, _LABEL_LIMIT, max_fds=KERNEL_MAX_FDS, flags=socket.MSG_PEEK | socket.MSG_DONTWAIT
            )
            fds += packet.fds
            if packet.truncated:
                raise OSError(errno.EMFILE, "no room for the descriptors of a bundle")
            if packet.end:
                break
            label = packet.data
        if not label:
            raise OSError(errno.EINVAL, "is no bundle")
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return label, tuple(fds)


def is_kept(receipt: socket.socket) -> bool:
    """Return whether the bundle of this ``receipt`` is still kept."""
    try:
        return receipt.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
