"""Writes that are not announced, at random moments of checkpoints: whether a torn image is ever committed.

Event `attacks`: how many checkpoints were attacked, refused as torn, committed, and committed with other content than
that of the cut.
"""

import argparse
import random
import time
from pathlib import Path

import torch

from mpsguard import client
from mpsguard.images import checkpoints
from mpsguard.images.checkpoints.errors import CheckpointRefusedError
from mpsguard.images.checkpoints.messages import CheckpointRefusal
from mpsguard.images.store.store import ImageStore
from mpsguard.vault.client import mapped
from mpsguard.vault.client.torch_regions import backend_of
from tests.bench.checkpoint.telling import emit, run
from tests.bench.checkpoint.verifier import PIECE, differences, whole

WITHIN = 60.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, default=256 << 20)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    chance = random.Random(5)
    made = torn = committed = wrong = other = 0
    with (
        client.join("attacked", keep=60) as session,
        mapped.open_or_create(session, backend_of(options.device), "memory", options.size) as memory,
    ):
        content = whole(memory, options.device)
        content.copy_(torch.randint(0, 256, content.shape, dtype=torch.uint8, device=content.device))
        reference = torch.empty(len(content), dtype=torch.uint8, pin_memory=options.device != "cpu")
        checkpoints.of(session, store=options.store, buffers=256 << 20, retries=0)
        session.publish(b"1")
        checkpoints.of(session).take("attacked").wait(WITHIN)
        due = time.monotonic() + options.seconds
        while made < options.rounds and time.monotonic() < due:
            # Announced: otherwise nothing would be copied that could be torn.
            memory.writing()
            content.add_(1)
            reference.copy_(content)
            session.publish(b"%d" % made)
            checkpoint = checkpoints.of(session).take("attacked")
            made += 1
            # Up to the time that the drain takes: 5 ms for 256 MiB. Some come too late to tear anything.
            time.sleep(chance.choice((0.0, 0.0, 0.001, 0.003)))
            for _ in range(chance.choice((1, 1, 4))):
                content[chance.randrange(len(content) // PIECE) * PIECE + chance.randrange(PIECE)] += 1
            if options.device != "cpu":
                torch.cuda.synchronize()
            try:
                checkpoint.wait(WITHIN)
            except CheckpointRefusedError as error:
                torn += error.refusal is CheckpointRefusal.TORN
                other += error.refusal is not CheckpointRefusal.TORN
                continue
            committed += 1
            with ImageStore(options.store) as store:
                with store.open("attacked") as image:
                    wrong += differences(image, "memory", reference.numpy()) > 0
                store.collect()
        del content
    emit("attacks", made=made, torn=torn, committed=committed, wrong=wrong, other=other)


if __name__ == "__main__":
    run(main)
