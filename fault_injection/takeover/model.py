"""The simulated model: each token follows from the request and from the cache, so that a lost or torn cache shows.

A cache entry is a checksum of the entry before it (of the prompt, at first); a token is that entry in words, padded to
the request's width. So the whole stream of a request follows from the request.
"""

import hashlib
from typing import Final, NamedTuple

ENTRY: Final = 16
"""Bytes of a cache entry."""
MOST_TOKENS: Final = 256
SLOTS: Final = 64
"""Requests that fit into the cache at once."""
CACHE: Final = SLOTS * MOST_TOKENS * ENTRY
SKIPPED: Final = b"!skipped\n"
"""What a client gets instead of the rest of a request that ends every process that works on it."""
_LONGEST_LINE: Final = 128


class Request(NamedTuple):
    """A client's request."""

    prompt: str
    tokens: int
    width: int
    """Bytes of a token."""
    poison: int = -1
    """The token that ends every process that computes it; -1: none."""

    def line(self) -> bytes:
        """As it is sent."""
        return f"{self.prompt} {self.tokens} {self.width} {self.poison}\n".encode()


def parse(seen: bytes) -> Request | None:
    """The request at the beginning of a connection; None while it is not there as a whole. ValueError."""
    line, end, _ = seen.partition(b"\n")
    if not end:
        if len(seen) >= _LONGEST_LINE:
            raise ValueError("no request")
        return None
    prompt, tokens, width, poison = line.decode().split(" ")
    request = Request(prompt, int(tokens), int(width), int(poison))
    if not 0 < request.tokens <= MOST_TOKENS:
        raise ValueError("too many tokens")
    return request


def first(request: Request) -> bytes:
    """What the first entry follows from."""
    return request.prompt.encode()


def entry(before: bytes) -> bytes:
    """The cache entry behind another one."""
    return hashlib.blake2b(before, digest_size=ENTRY).digest()


def token(request: Request, of: bytes) -> bytes:
    """The bytes that a client gets for a cache entry."""
    return of.hex().encode().ljust(request.width - 1, b".") + b"\n"


def stream(request: Request) -> bytes:
    """All that a client gets, if nothing is lost and nothing doubled."""
    pieces, before = [], first(request)
    for index in range(request.tokens):
        if index == request.poison:
            pieces.append(SKIPPED)
            break
        before = entry(before)
        pieces.append(token(request, before))
    return b"".join(pieces)
