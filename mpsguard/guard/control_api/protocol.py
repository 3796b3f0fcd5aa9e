"""The control API's messages: JSON, versioned, shared by the guard and everything that talks to it.

Request and reply go over a ZeroMQ ROUTER socket (REQ or DEALER at the other end), events over a PUB socket with the
topic ``DOMAIN.KIND``. Both are ``ipc://`` sockets in the guard's run directory.
"""

from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

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


class NoArguments(msgspec.Struct):
    """The arguments of a command that takes none."""


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


def encode_request(command: str, arguments: msgspec.Struct, deadline: float) -> bytes:
    """Return a request's message; the guard may work on it for ``deadline`` seconds."""
    return msgspec.json.encode(
        Request(VERSION, command, msgspec.Raw(msgspec.json.encode(arguments)), deadline=deadline)
    )


def decode_result(message: bytes, result: type[T]) -> T:
    """Return the result in a reply's message.

    Raises:
        RequestError: the guard has refused the request, or failed.
        msgspec.MsgspecError: it is no such result: the guard is of another version.
    """
    reply = msgspec.json.decode(message, type=Reply)
    if reply.error is not None:
        raise RequestError(reply.error.code, reply.error.message)
    return msgspec.convert(reply.result, type=result)


def api_socket(run_directory: str) -> Path:
    """Where requests go."""
    return Path(run_directory) / "api.sock"


def events_socket(run_directory: str) -> Path:
    """Where events come from."""
    return Path(run_directory) / "events.sock"
