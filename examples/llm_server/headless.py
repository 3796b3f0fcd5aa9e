"""The server's work without a network: a fixed list of requests, for measurements and comparison of tokens."""

import random

from examples.events import Events
from examples.llm_server import state as forward
from examples.llm_server.engine import Engine
from examples.llm_server.state import Request


def request(number: int, slot: int, *, prompt: int, tokens: int, vocabulary: int) -> Request:
    """Return the request with that number: always the same, with ``prompt`` tokens. Pure."""
    chance = random.Random(number)  # noqa: S311 - no secret
    words = tuple(chance.randrange(vocabulary) for _ in range(prompt))
    return Request(number, slot, words, tokens, seed=number)


def run(
    engine: Engine, events: Events, *, requests: int, slots: int, prompt: int, tokens: int, vocabulary: int
) -> None:
    """Answer all requests; ids count from 0, and the state says how far previous processes have come.

    Writes an event ``token`` after each published step, with the tokens by request and the number that each request
    has; and ``answer`` for each finished request, with all its tokens.
    """
    while True:
        over = [r for r in engine.state.requests if r.over]
        for done in over:
            events.write("answer", id=done.id, tokens=done.tokens, failed=done.failed)
        engine.forget([r.id for r in over])
        while engine.state.next_id < requests and (slot := forward.free_slot(engine.state, slots)) is not None:
            engine.admit(request(engine.state.next_id, slot, prompt=prompt, tokens=tokens, vocabulary=vocabulary))
        if not engine.state.requests:
            return
        made = engine.step()
        if made:
            counts = {r.id: len(r.tokens) for r in engine.state.requests}
            events.write("token", tokens={number: [counts[number], token] for number, token in made.items()})
