"""A training loop that takes checkpoints: how long its steps take meanwhile, and the same with its peers.

    python -m tests.bench.checkpoint.trainer --store DIR --size BYTES --device cuda ...

Events: `prepared`; `baseline` (seconds of steps); `checkpoint` for each of ours (seconds of the steps from the cut to
the commit, what the cut took, what came of it, and when those without it and with it began); `peer` for each of
torch.save and async_save; `finished`.
"""

import argparse
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch

from mpsguard import client
from mpsguard.images import checkpoints
from mpsguard.images.checkpoints.errors import CheckpointRefusedError
from mpsguard.images.checkpoints.messages import Ended
from mpsguard.images.store.store import ImageStore
from tests.bench.checkpoint.network import Training
from tests.bench.checkpoint.telling import emit, run

WITHIN = 120.0
"""Seconds for one checkpoint."""
STATE = 0.54
"""Largest share of the GPU's free memory that the state takes."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, default=1 << 30, help="bytes of state")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--accumulate", type=int, default=1, help="passes for each step of the optimizer")
    parser.add_argument("--spare", type=int, default=0)
    parser.add_argument("--buffers", type=int, default=4 << 30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="between two checkpoints")
    parser.add_argument("--patience", type=float, default=10.0)
    parser.add_argument("--one", action="store_true", help="remove the image before the next: the store holds one only")
    parser.add_argument("--peers", type=int, default=0, help="checkpoints of each peer")
    parser.add_argument("--seconds", type=float, default=120.0, help="no round begins later")
    return parser.parse_args()


def steps_until(training: Training, is_over: Callable[[], bool], least: int = 1) -> list[float]:
    """Seconds of the steps that are made until something is over."""
    due = time.monotonic() + WITHIN
    taken: list[float] = []
    while len(taken) < least or (not is_over() and time.monotonic() < due):
        taken.append(training.step()[1])
    return taken


def ours(training: Training, options: argparse.Namespace) -> None:
    session, random_ = training.session, random.Random(7)
    due = time.monotonic() + options.seconds
    for number in range(options.rounds):
        if time.monotonic() > due:
            break
        alone_began = time.monotonic()
        alone = [training.step()[1] for _ in range(random_.randint(options.steps // 2, options.steps))]
        if options.one:
            with ImageStore(options.store) as store:
                store.remove("training")
                store.collect()
        before = checkpoints.of(session).waited
        began = time.monotonic()
        checkpoint = checkpoints.of(session).take("training")
        cut = time.monotonic() - began
        steps = steps_until(training, lambda: not checkpoint.is_under_way)  # noqa: B023 - called within the round
        steps[0] += cut
        refused = ""
        try:
            checkpoint.wait(WITHIN)
        except (CheckpointRefusedError, TimeoutError) as error:
            refused = str(error)
        ended = checkpoint.ended or Ended(0, None)
        emit(
            "checkpoint",
            number=number,
            alone=alone,
            steps=steps,
            alone_began=alone_began,
            began=began,
            cut=cut,
            waited=checkpoints.of(session).waited - before,
            refused=refused,
            drained=ended.drained,
            took=ended.took,
            copied=ended.copied,
            unannounced=ended.unannounced,
        )
        if not options.one:
            with ImageStore(options.store) as store:
                store.collect()


def torch_save(training: Training, path: Path) -> tuple[list[float], float]:
    began = time.perf_counter()
    torch.save(training.tensors(), path)
    stop = time.perf_counter() - began
    steps = steps_until(training, lambda: True)
    path.unlink()
    return [steps[0] + stop], stop


def async_save(training: Training, path: Path) -> tuple[list[float], float]:
    from torch.distributed import checkpoint as dcp  # noqa: PLC0415 - seconds to import

    if not torch.distributed.is_initialized():
        # It needs a group, of this process alone; there may be no network but the loopback.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group("gloo", init_method=f"file://{path}.group", rank=0, world_size=1)
    began = time.perf_counter()
    future = dcp.async_save(training.tensors(), checkpoint_id=path)
    stop = time.perf_counter() - began
    steps = steps_until(training, future.done)
    future.result()
    took = time.perf_counter() - began
    steps[0] += stop
    shutil.rmtree(path)
    return steps, took


def peers(training: Training, options: argparse.Namespace) -> None:
    if not options.peers:
        return
    directory = options.store.parent / "peers"
    directory.mkdir(exist_ok=True)
    due = time.monotonic() + options.seconds
    for name, save in (("torch.save", torch_save), ("async_save", async_save)):
        for number in range(options.peers):
            if time.monotonic() > due:
                return
            alone = [training.step()[1] for _ in range(options.steps)]
            try:
                steps, took = save(training, directory / f"{name}-{number}")
            except Exception as error:
                emit("peer", name=name, refused=f"{type(error).__name__}: {error}"[:300])
                break
            emit("peer", name=name, alone=alone, steps=steps, took=took, refused="")


def main() -> None:
    options = arguments()
    with client.join("trainer", keep=60) as session:
        size = options.size
        if options.device != "cpu":
            # Gradients and activations need the rest.
            size = min(size, int(torch.cuda.mem_get_info()[0] * STATE))
        training = Training(session, size, options.device, options.rows, first=True, accumulate=options.accumulate)
        checkpoints.of(
            session,
            store=options.store,
            spare=options.spare,
            buffers=options.buffers,
            patience=options.patience,
            deadline=WITHIN,
        )
        checkpoints.of(session).start()
        session.publish(b"0")
        for _ in range(3):
            training.step()
        # The first one also starts the copier and pins its memory; it is no part of what is measured.
        first = checkpoints.of(session).take("training")
        ended = first.wait(WITHIN)
        emit("prepared", size=training.memory.size, took=ended.took, drained=ended.drained)
        emit("baseline", steps=[training.step()[1] for _ in range(2 * options.steps)])
        ours(training, options)
        checkpoints.of(session).let_go()
        peers(training, options)


if __name__ == "__main__":
    run(main)
