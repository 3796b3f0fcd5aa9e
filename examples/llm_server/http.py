"""HTTP as bytes: parses a request from the bytes received so far, formats an answer from its tokens. Pure.

The answer depends only on the request's state, so a successor knows its bytes, and only needs the number of bytes that
have been written.
"""

from collections.abc import Mapping
from typing import Annotated, Final

import h11
import msgspec
from msgspec import Meta

from examples.llm_server.state import Request

MOST_BYTES: Final = 65536
"""Maximum bytes of a request, head and body."""
PATH: Final = b"/generate"

_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON body of POST /generate."""

    prompt: str | tuple[Annotated[int, Meta(ge=0)], ...]
    """Tokens, or a text; its UTF-8 bytes are used as tokens, since these models have no vocabulary of words."""
    max_tokens: Annotated[int, Meta(ge=1)] = 64
    seed: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the prompt."""
        return tuple(self.prompt.encode()) if isinstance(self.prompt, str) else self.prompt


class Received(msgspec.Struct, frozen=True):
    """A whole request."""

    wanted: Wanted
    size: int
    """Its size in bytes."""


class Refused(msgspec.Struct, frozen=True):
    """A request that is answered with an error, and the answer."""

    answer: bytes


def parse(data: bytes, *, vocabulary: int, length: int) -> Received | Refused | None:
    """Return the request at the start of ``data``; None if it is incomplete.

    A request with more than ``length`` tokens, prompt and answer together, is refused.
    """
    if not data:
        # h11 would take it for the end of the connection.
        return None
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_BYTES)
    body = b""
    try:
        connection.receive_data(data)
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                return _refuse(413, f"more than {MOST_BYTES} bytes") if len(data) >= MOST_BYTES else None
            if isinstance(event, h11.Request) and (event.method, event.target) != (b"POST", PATH):
                return _refuse(404, f"there is POST {PATH.decode()}, nothing else")
            if isinstance(event, h11.Data):
                body += bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                break
        wanted = msgspec.json.decode(body, type=Wanted)
    except (h11.RemoteProtocolError, msgspec.DecodeError) as error:
        return _refuse(400, str(error))
    tokens = wanted.tokens
    if not tokens or max(tokens) >= vocabulary:
        return _refuse(400, f"prompt: at least one token, each below {vocabulary}")
    if len(tokens) + wanted.max_tokens > length:
        return _refuse(400, f"prompt and max_tokens: {length} tokens together at most")
    return Received(wanted, len(data) - len(connection.trailing_data[0]))


def answer(request: Request) -> bytes:
    """Return all of the answer that the request's tokens allow so far."""
    return _HEAD + b"".join(piece(index, token) for index, token in enumerate(request.tokens)) + end(request)


def piece(index: int, token: int) -> bytes:
    """Return the part of the answer with one token."""
    return _chunk({"index": index, "token": token})


def end(request: Request) -> bytes:
    """Return what follows the last token; empty while more tokens are to come."""
    if not request.over:
        return b""
    given_up = {"error": f"given up: {request.deaths} processes died of it"}
    return _chunk(given_up if request.failed else {"done": True}) + b"0\r\n\r\n"


def _chunk(value: Mapping[str, int | str]) -> bytes:
    line = msgspec.json.encode(value) + b"\n"
    return b"%x\r\n%b\r\n" % (len(line), line)


def _refuse(status: int, reason: str) -> Refused:
    body = msgspec.json.encode({"error": reason}) + b"\n"
    words = {400: "Bad Request", 404: "Not Found", 413: "Content Too Large"}[status]
    head = f"HTTP/1.1 {status} {words}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return Refused(head.encode() + b"Connection: close\r\n\r\n" + body)
