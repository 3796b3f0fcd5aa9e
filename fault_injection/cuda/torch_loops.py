"""PyTorch programs like many: `torch_loops.py KIND... --rounds N --seconds S --controlled [--cores 2]`.

`train` steps a network by Adam, `infer` passes batches of changing size through a transformer layer, both with enough
work in a step to keep the GPU busy; `train-small` and `infer-small` have less than Python takes to launch it. Several
kinds take turns, a round each. A round waits for a line on standard input and ends with the event `round` (kind,
iterations, seconds), as with `worker.cu`; events before it are `first_kernel` and `begin`, the last one is `finished`,
after all rounds or at the end of the input. Exit status: 0 finished, 2 usage, 4 failed.
It runs under the interpreter that holds PyTorch, so it imports nothing of this project.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

FAILED = 4
_WIDTH = 1024
_LENGTHS = (64, 96, 128)
_WARM_UP = 10
"""Steps before the first round: libraries choose their algorithms, and the caching allocator has what it needs."""


def emit(event: str, **members: object) -> None:
    """Print one event at once."""
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()


def training(torch: Any, rows: int, width: int) -> Callable[[], None]:
    """A function that makes one step."""
    layers = [torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        batch = torch.randn(rows, width, device="cuda")
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), batch).backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def inference(torch: Any, rows: int, factor: int) -> Callable[[], None]:
    """A function that passes one batch."""
    model = torch.nn.TransformerEncoderLayer(_WIDTH, 8, batch_first=True).cuda().eval()
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        with torch.no_grad():
            model(torch.randn(rows, factor * _LENGTHS[count % len(_LENGTHS)], _WIDTH, device="cuda"))
        torch.cuda.synchronize()

    return step


KINDS: dict[str, Callable[[Any], Callable[[], None]]] = {
    "train": lambda torch: training(torch, 8192, 2048),
    "infer": lambda torch: inference(torch, 64, 4),
    "train-small": lambda torch: training(torch, 256, _WIDTH),
    "infer-small": lambda torch: inference(torch, 8, 1),
}


def stay_on(cores: set[int]) -> None:
    """Keep all threads that there are by now on these CPUs."""
    for thread in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


def loop(step: Callable[[], None], seconds: float) -> dict[str, float]:
    """Steps for `seconds`: how many, and how long they took."""
    begin = time.monotonic()
    iterations = 0
    emit("begin")
    while time.monotonic() - begin < seconds:
        step()
        iterations += 1
    return {"iterations": iterations, "seconds": time.monotonic() - begin}


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("kinds", metavar="kind", nargs="+", choices=tuple(KINDS), help=", ".join(KINDS))
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--controlled", action="store_true")
    parser.add_argument("--cores", default="", help="after the warm-up, run on these CPUs alone, as in 2 or 2,3")
    options = parser.parse_args()
    emit("start")
    torch = importlib.import_module("torch")
    try:
        steps = [(kind, KINDS[kind](torch)) for kind in options.kinds]
        for _, step in steps:
            for _ in range(_WARM_UP):
                step()
        if options.cores:
            stay_on({int(core) for core in options.cores.split(",")})
        emit("first_kernel")
        done: dict[str, float] = {}
        for kind, step in itertools.islice(itertools.cycle(steps), options.rounds):
            if options.controlled and not sys.stdin.readline():
                break
            done = loop(step, options.seconds)
            emit("round", kind=kind, **done)
    except RuntimeError as error:
        emit("failed", code=-1, name=str(error).splitlines()[0], call="torch")
        return FAILED
    emit("finished", **done)
    return 0


if __name__ == "__main__":
    # Straight out when the context is dead: PyTorch's own teardown would make CUDA calls that may never return.
    status = main()
    if status:
        os._exit(status)
    sys.exit(status)
