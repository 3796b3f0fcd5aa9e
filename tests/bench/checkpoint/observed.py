"""A program that a snapshot is taken of: it knows of neither mpsguard nor the preload that it runs under.

It has tensors with known contents, which it never writes again, and counts short kernels in windows until its input
ends. Event `contents`: (address, int32 elements, salt) of each tensor. Event `windows`, at the end: see `tenant.py`.
"""

import argparse
import sys
import threading
import time

import torch

from tests.bench.checkpoint.pattern import FACTOR
from tests.bench.checkpoint.telling import emit, run

WINDOW = 0.02


def known(elements: int, salt: int, device: str) -> torch.Tensor:
    return torch.arange(elements, dtype=torch.int32, device=device).mul_(FACTOR).add_(salt)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, required=True, help="bytes of the large tensors together")
    parser.add_argument("--tensors", type=int, default=8)
    options = parser.parse_args()
    over = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        over.set()

    elements = options.size // options.tensors // 4
    # Small ones share a block of PyTorch's, and a slab of the preload's.
    sizes = [elements] * options.tensors + [1000, 20_000, 300_001]
    tensors = [known(size, salt, options.device) for salt, size in enumerate(sizes, 1)]
    matrix = torch.randn(1024, 1024, device=options.device)
    result = torch.mm(matrix, matrix)
    torch.cuda.synchronize()
    emit("contents", tensors=[(t.data_ptr(), t.numel(), salt) for salt, t in enumerate(tensors, 1)])
    threading.Thread(target=watch, daemon=True).start()
    windows: list[tuple[float, float, int]] = []
    while not over.is_set():
        began, count = time.monotonic(), 0
        while (now := time.monotonic()) - began < WINDOW:
            torch.mm(matrix, matrix, out=result)
            torch.cuda.synchronize()
            count += 1
        windows.append((began, now - began, count))
    emit("windows", windows=windows)


if __name__ == "__main__":
    run(main)
