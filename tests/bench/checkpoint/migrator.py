"""Both sides of a migration: a token loop that reads all its state for each token, as a decoder does, and writes some.

Events: `serving`; of the source `moved` (its last token, when the one before it was made, the seconds of a token and of
the last cut), of the receiver `taken` (the first token that it made, when, the seconds of the handover's steps, and the
pieces that are not what they should be).
"""

import argparse
import time
from pathlib import Path

import torch

from mpsguard import client
from mpsguard.images import checkpoints
from mpsguard.images.migration import receive as migration
from mpsguard.images.migration.incoming import IncomingMemory
from mpsguard.images.migration.receive import receive
from mpsguard.vault.client import mapped
from mpsguard.vault.client.torch_regions import backend_of
from tests.bench.checkpoint.laps import Laps
from tests.bench.checkpoint.telling import emit, run
from tests.bench.checkpoint.verifier import whole

PIECE = 2 << 20
WRITES = 2
"""Pieces that each token writes: a row of a cache of keys and values, and what follows from it."""


def token(session: client.Session, memory: mapped.Memory, content: torch.Tensor, number: int, device: str) -> None:
    """Read everything, write to some pieces, in turn, and publish."""
    content.view(torch.float32).sum()
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
        checkpoints.of(session, store=options.store, buffers=2 << 30).start()
        made, before = 0, 0.0
        began = now = time.monotonic()
        emit("serving")
        while True:
            try:
                token(session, memory, content, made + 1, options.device)
            except client.StaleGenerationError:
                break
            # `publish` returned from the handover behind the last one: the pause begins at the token before it.
            before, now, made = now, time.monotonic(), made + 1
        each = (before - began) / max(made - 1, 1)
        emit("moved", token=made, at=before, each=each, cut=checkpoints.of(session).last_cut)
        del content


def warm_up(device: str) -> None:
    """Have a token's kernels loaded, as in a program that has served before."""
    content = torch.zeros(4 * PIECE, dtype=torch.uint8, device=device)
    content.view(torch.float32).sum()
    content[:PIECE].fill_(1)
    int((content != 1).any().item())
    if device != "cpu":
        torch.cuda.synchronize()


def take(options: argparse.Namespace) -> None:
    source = f"migrated-{options.number}"
    warm_up(options.device)
    laps = Laps()
    for owner, name, step in (
        (migration._Migration, "_ask", "image"),
        (migration._Migration, "_load", "load"),
        (IncomingMemory, "give_to", "vault"),
        (migration._Migration, "_take_over", "lease"),
        (migration, "_until", "others gone"),
        (IncomingMemory, "close", "give back"),
        (mapped, "attach", "attach"),
    ):
        laps.watch(owner, name, step)
    with (
        laps,
        receive(f"{source}-there", source, store=options.store) as session,
        mapped.attach(session, backend_of(options.device), "memory", writable=True) as memory,
    ):
        there = time.monotonic()
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
        steps = {step: seconds[-1] for step, seconds in laps.seconds.items()} | {"attach, and first token": at - there}
        rounds = list(map(sum, zip(laps.seconds["image"], laps.seconds["load"], strict=True)))
        emit("taken", token=made + 1, at=at, wrong=wrong, steps=steps, rounds=rounds)
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
