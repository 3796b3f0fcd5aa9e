"""The forward state: everything that the successor must know besides weights and KV cache. Pure.

Each token depends only on the tokens before it and on the request's seed. Published tokens count: a token is sent to
the client only after the state that contains it was published, and one that was not published is computed again.
"""

import array
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

MOST_DEATHS: Final = 3
"""Processes that may die on one request without a token in between; then it is given up."""

VERSION: Final = 1


class Request(msgspec.Struct, frozen=True):
    """A request that is being computed."""

    id: int
    """Tag of its connection."""
    slot: int
    """Its sequence in the KV cache."""
    prompt: tuple[int, ...]
    limit: int
    """Number of tokens wanted."""
    seed: int
    tokens: tuple[int, ...] = ()
    deaths: int = 0
    """Processes that have died since its last token."""

    @property
    def failed(self) -> bool:
        """Whether it was given up."""
        return self.deaths >= MOST_DEATHS

    @property
    def over(self) -> bool:
        """Whether nothing is left to compute."""
        return self.failed or len(self.tokens) >= self.limit


class State(msgspec.Struct, frozen=True):
    """All requests with their progress."""

    requests: tuple[Request, ...] = ()
    next_id: int = 0
    """The id of the next request; ids are never reused."""

    def request(self, id: int) -> Request | None:  # noqa: A002 - its name everywhere
        """Return the request with that id, or None."""
        return next((request for request in self.requests if request.id == id), None)


class StateError(Exception):
    """Not a state of this version."""


class _Packed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    id: int
    slot: int
    prompt: bytes
    limit: int
    seed: int
    tokens: bytes
    deaths: int


class _Whole(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    next_id: int
    requests: tuple[_Packed, ...]


def encode(state: State) -> bytes:
    """Return the encoded state, with 4 bytes for each token."""
    packed = tuple(
        _Packed(r.id, r.slot, _pack(r.prompt), r.limit, r.seed, _pack(r.tokens), r.deaths) for r in state.requests
    )
    return msgspec.msgpack.encode(_Whole(VERSION, state.next_id, packed))


def decode(data: bytes) -> State:
    """Decode a state; raise StateError."""
    try:
        whole = msgspec.msgpack.decode(data, type=_Whole)
        if whole.version != VERSION:
            raise StateError(f"state of version {whole.version}; this is {VERSION}")
        requests = tuple(
            Request(p.id, p.slot, _unpack(p.prompt), p.limit, p.seed, _unpack(p.tokens), p.deaths)
            for p in whole.requests
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise StateError(f"not a state: {error}") from None
    return State(requests, whole.next_id)


def capacity(slots: int, length: int) -> int:
    """Return the maximum size of a state in bytes."""
    return 64 + slots * (4 * length + 64)


def free_slot(state: State, slots: int) -> int | None:
    """Return the lowest unused slot, or None."""
    used = {request.slot for request in state.requests}
    return next((slot for slot in range(slots) if slot not in used), None)


def admitted(state: State, request: Request) -> State:
    """Return the state with one more request; raise ValueError if its slot or id is in use."""
    if any(other.slot == request.slot or other.id == request.id for other in state.requests):
        raise ValueError(f"request {request.id} in slot {request.slot}: another one is there")
    return State((*state.requests, request), max(state.next_id, request.id + 1))


def advanced(state: State, tokens: Mapping[int, int]) -> State:
    """Return the state with one more token for each request named (by id)."""
    return msgspec.structs.replace(
        state,
        requests=tuple(
            msgspec.structs.replace(r, tokens=(*r.tokens, tokens[r.id]), deaths=0) if r.id in tokens else r
            for r in state.requests
        ),
    )


def without(state: State, ids: Sequence[int]) -> State:
    """Return the state without some requests."""
    return msgspec.structs.replace(state, requests=tuple(r for r in state.requests if r.id not in ids))


def after_failover(state: State) -> State:
    """Return the state for a successor: one more death for each request that was being computed."""
    computed = {request.id for request in to_compute(state)}
    return msgspec.structs.replace(
        state,
        requests=tuple(
            msgspec.structs.replace(r, deaths=r.deaths + 1) if r.id in computed else r for r in state.requests
        ),
    )


def to_compute(state: State) -> tuple[Request, ...]:
    """Return the requests that get a token next: the first suspect alone, or all if none is suspect."""
    open_ = tuple(request for request in state.requests if not request.over)
    suspects = [request for request in open_ if request.deaths > 1]
    return (min(suspects, key=lambda request: request.id),) if suspects else open_


def _pack(tokens: Sequence[int]) -> bytes:
    return array.array("I", tokens).tobytes()


def _unpack(data: bytes) -> tuple[int, ...]:
    tokens = array.array("I")
    tokens.frombytes(data)
    return tuple(tokens)
