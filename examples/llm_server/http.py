"""HTTP as bytes: a request from what has come so far, an answer from the tokens. Pure.

The answer is a function of the request's state alone, so that whoever goes on with it knows its bytes, and needs to be
told only how many of them have been written.
"""

from collections.abc import Mapping
from typing import Annotated, Final

import h11
import msgspec
from msgspec import Meta

from examples.llm_server.state import Request

MOST_BYTES: Final = 65536
"""Of a request, head and body."""
PATH: Final = b"/generate"

_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a peer asks for: POST /generate with this as JSON."""

    prompt: str | tuple[Annotated[int, Meta(ge=0)], ...]
    """Tokens, or a text whose UTF-8 bytes are taken for tokens: these models know no language."""
    max_tokens: Annotated[int, Meta(ge=1)] = 64
    seed: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        """The prompt's."""
        return tuple(self.prompt.encode()) if isinstance(self.prompt, str) else self.prompt


class Come(msgspec.Struct, frozen=True):
    """A whole request."""

    wanted: Wanted
    size: int
    """Bytes that it took."""


class Refused(msgspec.Struct, frozen=True):
    """A request that is answered with an error, and the answer."""

    answer: bytes


def parse(data: bytes, *, vocabulary: int, length: int) -> Come | Refused | None:
    """The request at the start of ``data``; None if more must come.

    ``length``: tokens of prompt and answer together; a request for more is refused.
    """
    if not data:
        # For h11 it would be the end of the connection.
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
    return Come(wanted, len(data) - len(connection.trailing_data[0]))


def answer(request: Request) -> bytes:
    """All of the answer as far as the request has come."""
    return _HEAD + b"".join(piece(index, token) for index, token in enumerate(request.tokens)) + end(request)


def piece(index: int, token: int) -> bytes:
    """The part of the answer that brings one token."""
    return _chunk({"index": index, "token": token})


def end(request: Request) -> bytes:
    """What follows the last token; nothing as long as there is one to come."""
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
