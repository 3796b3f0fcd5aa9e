"""journald's own protocol: entries with fields, of which MESSAGE_ID tells the kind of event for good.

The contract is systemd's "Native Journal Protocol" and systemd.journal-fields(7).
"""

import os
import re
import socket
import sys
import uuid
from collections.abc import Mapping
from typing import Final

SOCKET: Final = "/run/systemd/journal/socket"
_NAMESPACE: Final = uuid.UUID("6f1ad1b4-52f5-4d2e-9e6b-0c9f6f6d8a51")
"""Of the message ids below; never to be changed: users match on them."""
_NAME: Final = re.compile(r"[^A-Z0-9_]")
_MAX_NAME: Final = 64
"""Characters of a field's name; journald drops fields with longer ones."""
_MAX_VALUE: Final = 4096
"""Bytes of a value, so that an entry fits into a datagram; the message has the whole text."""


def message_id(kind: str) -> str:
    """Return the MESSAGE_ID of a kind of event: 32 hexadecimal digits, the same for all time."""
    return uuid.uuid5(_NAMESPACE, kind).hex


def is_stderr() -> bool:
    """Return whether standard error goes to journald, by the JOURNAL_STREAM of systemd.exec(5)."""
    device, colon, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    if not colon:
        return False
    try:
        there = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(there.st_dev), str(there.st_ino))


def encode(fields: Mapping[str, str]) -> bytes:
    """Return the datagram of one entry."""
    parts: list[bytes] = []
    for name, value in fields.items():
        data = value.encode(errors="replace")
        if name != "MESSAGE":
            data = data[:_MAX_VALUE]
        if b"\n" in data:
            parts.append(name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n")
        else:
            parts.append(name.encode() + b"=" + data + b"\n")
    return b"".join(parts)


def field_name(key: str) -> str:
    """Return the name of the field for a key of an event: of our own namespace, as no user's may be trusted fields."""
    return f"MPSGUARD_{_NAME.sub('_', key.upper())}"[:_MAX_NAME]


class JournalSocket:
    """Sends entries to journald; never waits."""

    def __init__(self, path: str = SOCKET) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._path = path

    def send(self, fields: Mapping[str, str]) -> bool:
        """Send one entry; False if journald is not there or does not take it now, or if it is too large."""
        try:
            # By its path each time: a journald that was restarted has another socket there.
            self._socket.sendto(encode(fields), self._path)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()
