"""Uevents of the kernel, over netlink (lib/kobject_uevent.c): a header and NAME=VALUE texts, each ended by a NUL.

Every process may listen. Group 1 is the kernel's; root can send to it too, but only messages of the kernel have port 0.
"""

import errno
import os
import socket
from typing import Final

_NETLINK_KOBJECT_UEVENT: Final = 15
_KERNEL_PORT: Final = 0
_GROUP: Final = 1
_BUFFER: Final = 1 << 20
_LIMIT: Final = 8192
"""Bytes; the kernel's are at most 2 KiB of texts and a path."""

Uevent = dict[str, str]
"""NAME to VALUE; ACTION, DEVPATH, SUBSYSTEM and SEQNUM are in all of them."""


class Uevents:
    """Owns a socket that hears every uevent from now on."""

    def __init__(self) -> None:
        """Start to listen; OSError if the kernel has no uevents."""
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, _NETLINK_KOBJECT_UEVENT)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            self._socket.bind((0, _GROUP))
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """The descriptor, for pollers; -1 once closed."""
        return self._socket.fileno()

    def read(self) -> Uevent | None:
        """The next one, None if there is none; OverflowError if the kernel had to drop some before it."""
        while True:
            try:
                message, sender = self._socket.recvfrom(_LIMIT)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    raise OverflowError("uevents were dropped") from None
                raise
            if sender[0] == _KERNEL_PORT and (event := parse(message)) is not None:
                return event

    def close(self) -> None:
        """Stop listening; safe to call twice."""
        self._socket.close()


def parse(message: bytes) -> Uevent | None:
    """One message, or None if it is no uevent of the kernel (udev's own begin with "libudev")."""
    header, *texts = message.split(b"\0")
    if b"@" not in header:
        return None
    pairs = (os.fsdecode(text).partition("=") for text in texts if b"=" in text)
    return {name: value for name, _, value in pairs}
