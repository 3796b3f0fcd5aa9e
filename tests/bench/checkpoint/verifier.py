"""Checkpoints at random steps of a training, each compared byte for byte with a copy made while it stood still.

`--resume IMAGE` goes on from an image instead, in a session of its own. Events: `compared` for each checkpoint,
`losses` of the steps behind the last one (or of the resumed run).
"""

import argparse
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpsguard import client
from mpsguard.images import checkpoints, membership
from mpsguard.images.store.image import Image
from mpsguard.images.store.store import ImageStore
from tests.bench.checkpoint.network import REGION, Training
from tests.bench.checkpoint.telling import emit, run

PIECE = 2 << 20
WITHIN = 60.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--spare", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--losses", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--resume", default="")
    return parser.parse_args()


def whole(memory: Any, device: str) -> torch.Tensor:
    """All bytes of a region, as a tensor in its memory."""
    view = memory.view(readonly=False)
    return torch.as_tensor(view, device=device) if device != "cpu" else torch.from_numpy(np.asarray(view))


def differences(image: Image, name: str, reference: np.ndarray[Any, Any]) -> int:
    """Pieces of a region that are not as they should be."""
    region = next(each for each in image.manifest.regions if each.name == name)

    def differs(part: Sequence[int]) -> int:
        memory = bytearray(PIECE)
        buffer: np.ndarray[Any, Any] = np.frombuffer(memory, np.uint8)
        wrong = 0
        for index in part:
            expected = reference[index * PIECE : (index + 1) * PIECE]
            image.read_into(region.pieces[index], memoryview(memory)[: len(expected)])
            # NumPy compares without the interpreter's lock; comparing memoryviews takes ten times as long, with it.
            wrong += not np.array_equal(buffer[: len(expected)], expected)
        return wrong

    with ThreadPoolExecutor(16) as pool:
        return sum(pool.map(differs, [range(n, len(region.pieces), 16) for n in range(16)]))


def verify(training: Training, options: argparse.Namespace) -> None:
    session, chance = training.session, random.Random(11)
    content = whole(training.memory, options.device)
    reference = torch.empty(len(content), dtype=torch.uint8, pin_memory=options.device != "cpu")
    due = time.monotonic() + options.seconds
    number = 0
    last = False
    while not last:
        last = number + 1 == options.rounds or time.monotonic() > due
        for _ in range(chance.randint(1, 6)):
            training.step()
        reference.copy_(content)
        step = training.made
        checkpoint = checkpoints.of(session).take("verified")
        losses = [training.step()[0] for _ in range(options.losses if last else 2)]
        ended = checkpoint.wait(WITHIN)
        with ImageStore(options.store) as store:
            with store.open("verified") as image:
                wrong = differences(image, REGION, reference.numpy())
                state = image.manifest.forward_state
            if not last:
                store.collect()
        number += 1
        emit("compared", wrong=wrong + (state != b"%d" % step), pieces=ended.pieces, copied=ended.copied, step=step)
    emit("losses", step=step, losses=losses)
    del content


def main() -> None:
    options = arguments()
    if options.resume:
        with membership.join("resumed", keep=60, image=options.resume, store=options.store) as session:
            training = Training(session, options.size, options.device, options.rows, first=False)
            step = training.made
            emit("losses", step=step, losses=[training.step()[0] for _ in range(options.losses)])
        return
    with client.join("verifier", keep=60) as session:
        training = Training(session, options.size, options.device, options.rows, first=True)
        checkpoints.of(session, store=options.store, spare=options.spare, buffers=1 << 30)
        session.publish(b"0")
        verify(training, options)


if __name__ == "__main__":
    run(main)
