"""Both sides of a migration: a token loop with a large state, of which each token writes a little.

Events: `serving`; of the source `moved` (its last token, and when the one before it was made), of the receiver `taken`
(the first token that it made, when, and the pieces that are not what they should be).
"""

import argparse
import time
from pathlib import Path

import torch

from mpsguard import client
from mpsguard.client import mapped
from mpsguard.client.migration.receive import receive
from mpsguard.client.torch_regions import backend_of
from tests.gpu.checkpoint.telling import emit, run
from tests.gpu.checkpoint.verifier import whole

PIECE = 2 << 20
WRITES = 8
"""Pieces that each token writes."""


def token(session: client.Session, memory: mapped.Memory, content: torch.Tensor, number: int, device: str) -> None:
    """Write to some pieces, in turn, and publish."""
    pieces = len(content) // PIECE
    for each in range(WRITES):
        at = (number * WRITES + each) % pieces * PIECE
        memory.writing(at, PIECE)
        content[at : at + PIECE].fill_(number % 251)
    if device != "cpu":
        torch.cuda.synchronize()
    session.publish(b"%d" % number)


def serve(options: argparse.Namespace) -> None:
    with (
        client.join(f"migrated-{options.number}", keep=60) as session,
        mapped.open_or_create(session, backend_of(options.device), "memory", options.size) as memory,
    ):
        content = whole(memory, options.device)
        content.view(torch.int32).random_(generator=torch.Generator(content.device).manual_seed(options.number))
        session.publish(b"0")
        session.checkpoints(store=options.store, buffers=2 << 30).start()
        made, before = 0, 0.0
        now = time.monotonic()
        emit("serving")
        while True:
            try:
                token(session, memory, content, made + 1, options.device)
            except client.StaleGenerationError:
                break
            # `publish` returned from the handover behind the last one: the pause begins at the token before it.
            before, now, made = now, time.monotonic(), made + 1
        emit("moved", token=made, at=before)
        del content


def take(options: argparse.Namespace) -> None:
    source = f"migrated-{options.number}"
    with (
        receive(f"{source}-there", source, store=options.store) as session,
        mapped.attach(session, backend_of(options.device), "memory", writable=True) as memory,
    ):
        made = int(session.state() or b"0")
        content = whole(memory, options.device)
        token(session, memory, content, made + 1, options.device)
        at = time.monotonic()
        pieces = len(content) // PIECE
        wrong = 0
        for number in range(max(1, made + 2 - pieces // WRITES), made + 2):
            for each in range(WRITES):
                first = (number * WRITES + each) % pieces * PIECE
                wrong += int((content[first : first + PIECE] != number % 251).any().item())
        emit("taken", token=made + 1, at=at, wrong=wrong)
        del content
        session.release()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--side", choices=("source", "receiver"), required=True)
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("--number", type=int, default=0)
    options = parser.parse_args()
    options.size = options.size // PIECE * PIECE
    (serve if options.side == "source" else take)(options)


if __name__ == "__main__":
    run(main)
