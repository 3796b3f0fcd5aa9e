"""The server's work without a network: a fixed list of requests, for measuring and for comparing token by token."""

import random

from examples.events import Events
from examples.llm_server import state as forward
from examples.llm_server.engine import Engine
from examples.llm_server.state import Request


def request(number: int, slot: int, *, prompt: int, tokens: int, vocabulary: int) -> Request:
    """The request of that number: always the same one, ``prompt`` tokens long. Pure."""
    chance = random.Random(number)  # noqa: S311 - no secret
    words = tuple(chance.randrange(vocabulary) for _ in range(prompt))
    return Request(number, slot, words, tokens, seed=number)


def run(
    engine: Engine, events: Events, *, requests: int, slots: int, prompt: int, tokens: int, vocabulary: int
) -> None:
    """Answer all requests; the ids go up from 0, and the state says how far others have come.

    Writes an event ``token`` for each step after it was published, with the tokens by request, and how many the request
    has by then; and ``answer`` for each request that is over, with all its tokens.
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
