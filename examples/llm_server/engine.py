"""The work of one process: prepare the memory, resume the published state, and compute one token at a time."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from examples.events import Events
from examples.llm_server import memory
from examples.llm_server import state as forward
from examples.llm_server.decode import Decoder, Next
from examples.llm_server.memory import Loaded, Mode, Reloader
from examples.llm_server.shapes import Shape
from examples.llm_server.state import Request, State
from mpsguard.client import LeaseRole, Session


class Settings(NamedTuple):
    """Settings that every process of a program shares."""

    shape: Shape
    slots: int
    """Requests that are computed at a time."""
    seed: int
    """Seed of the weights."""
    device: torch.device
    mode: Mode


class Engine:
    """Owns the model's memory. Call `prepare`, then `resume`; from then on it is for the writer."""

    def __init__(self, session: Session, settings: Settings, events: Events) -> None:
        self._session = session
        self._settings = settings
        self._events = events
        self._loaded: Loaded | None = None
        self._reloader: Reloader | None = None
        self._decoder: Decoder | None = None
        self._uncached: set[int] = set()
        self.state = State()
        """As published."""

    def prepare(self) -> None:
        """Do everything that is possible before this process is the writer; afterwards it is ready."""
        shape, slots, seed, device, mode = self._settings
        if mode is Mode.VAULT:
            make = self._session.role is LeaseRole.WRITER
            self._loaded = memory.from_vault(self._session, shape, slots, seed, device, make=make)
        elif mode is Mode.COLD or self._session.role is LeaseRole.WRITER:
            self._loaded = memory.cold(shape, slots, seed, device)
        else:
            loaded = memory.cold(shape, slots, seed, device)
            # Makes libraries load and choose their kernels. No graph is recorded, because it would keep the memory.
            self._decoder_on(loaded).warm(record=False)
            self._reloader = Reloader(loaded, shape, slots, device)
        if self._loaded is not None:
            self._decoder = self._decoder_on(self._loaded)
            self._decoder.warm(record=True)
        self._events.write("prepared", role=str(self._session.role), mode=str(mode))

    def resume(self) -> None:
        """Do what remains once this process is the writer: read the published state."""
        if self._reloader is not None:
            self._loaded = self._reloader.load()
            self._decoder = self._decoder_on(self._loaded)
        self._working().touch()
        self._events.write("first_operation")
        found = self._session.state()
        if found is not None:
            self.state = forward.after_failover(forward.decode(found))
            self._publish(self.state)
        cached = self._loaded is not None and self._loaded.cached
        self._uncached = {request.id for request in self.state.requests if not (cached and request.tokens)}

    def admit(self, request: Request) -> None:
        """Begin a request; on return it survives this process."""
        self._publish(forward.admitted(self.state, request))
        self._uncached.add(request.id)

    def forget(self, ids: Sequence[int]) -> None:
        """Remove requests that have been answered, or of which the client has gone."""
        if ids:
            self._publish(forward.without(self.state, ids))
            self._uncached -= set(ids)

    def step(self) -> dict[int, int]:
        """Compute and publish one more token for some requests, by their ids; empty if there is nothing to do."""
        chosen = forward.to_compute(self.state)
        decoder = self._working()
        first = next((request for request in chosen if request.id in self._uncached), None)
        if first is not None:
            tokens = {first.id: decoder.prefill(first.slot, (*first.prompt, *first.tokens), first.seed)}
        else:
            given = {r.slot: Next(r.tokens[-1], len(r.prompt) + len(r.tokens) - 1, r.seed) for r in chosen if r.tokens}
            by_slot = decoder.step(given) if given else {}
            tokens = {r.id: by_slot[r.slot] for r in chosen if r.slot in by_slot}
        if tokens:
            self._publish(forward.advanced(self.state, tokens))
            self._uncached -= set(tokens)
        return tokens

    def close(self) -> None:
        """Release the memory. Safe to call twice."""
        self._decoder = self._reloader = None
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    def _publish(self, state: State) -> None:
        self._session.publish(forward.encode(state))
        self.state = state

    def _decoder_on(self, loaded: Loaded) -> Decoder:
        shape, slots, _, device, _ = self._settings
        return Decoder(loaded.network, loaded.slots, shape, slots, device)

    def _working(self) -> Decoder:
        if self._decoder is None:
            raise RuntimeError("not prepared")
        return self._decoder
