"""The control API's messages: JSON, versioned, shared by the guard and everything that talks to it.

Request and reply go over a ZeroMQ ROUTER socket (REQ or DEALER at the other end), events over a PUB socket with the
topic ``DOMAIN.KIND``. Both are ``ipc://`` sockets in the guard's run directory.
"""

from pathlib import Path
from typing import Any, Final

import msgspec

VERSION: Final = 1
MAX_MESSAGE: Final = 1 << 20
"""Bytes of one message."""

MAX_DEADLINE: Final = 600.0
"""Seconds a request may ask the guard to work on it."""


class Request(msgspec.Struct, frozen=True):
    """What to do, and for how long at most (seconds)."""

    v: int
    command: str
    args: msgspec.Raw = msgspec.Raw(b"{}")
    id: str = ""
    deadline: float = 10.0


class Error(msgspec.Struct, frozen=True):
    """Why a request was not carried out."""

    code: str
    """malformed, version, unknown_command, arguments, deadline, busy, failed."""
    message: str


class Reply(msgspec.Struct, frozen=True):
    """Either ``result`` or ``error``."""

    v: int
    id: str
    result: Any = None
    error: Error | None = None


class Event(msgspec.Struct, frozen=True):
    """One thing that happened. ``v`` is the version of this message; new fields may be added to ``data``."""

    seq: int
    time: float
    kind: str
    domain: str
    data: dict[str, Any]
    v: int = 1


class RequestError(Exception):
    """A request that cannot be carried out, for a reason the asker can act on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def api_socket(run_directory: str) -> Path:
    """Where requests go."""
    return Path(run_directory) / "api.sock"


def events_socket(run_directory: str) -> Path:
    """Where events come from."""
    return Path(run_directory) / "events.sock"
