"""A process without a pool: imports, a context, the model's objects, its weights from a file, the first answer.

Events: `prepared` (imports and context), `answered` (seconds since the request, the answer). The first round is a cold
process's; the others are those of a warm one, which has run this very model before.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.bench.checkpoint.telling import emit, run
from tests.bench.start.models import KINDS, Skeleton


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no round after so many")
    options = parser.parse_args()
    ends = time.monotonic() + options.seconds
    torch.zeros(1, device=options.device)
    emit("prepared")
    for _ in range(options.rounds):
        began = time.perf_counter()
        skeleton = Skeleton(options.kind, options.device)
        skeleton.bind(load_file(options.file, device=options.device))
        answer = skeleton.answer()
        emit("answered", seconds=time.perf_counter() - began, answer=answer)
        skeleton.drop()
        if time.monotonic() >= ends:
            break


if __name__ == "__main__":
    run(main)
