"""Another client of the lane: short kernels, one behind the other, counted in windows of 2 ms until its input ends.

Event `windows` at the end: for each window its begin (seconds of CLOCK_MONOTONIC), its length, the number of kernels.
"""

import argparse
import sys
import threading
import time

import torch

from tests.bench.checkpoint.telling import emit, run

WINDOW = 0.002
"""Seconds: a checkpoint of which little has changed takes some 20 ms."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    over = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        over.set()

    matrix = torch.randn(512, 512, device=options.device)
    torch.mm(matrix, matrix)
    emit("first_kernel")
    threading.Thread(target=watch, daemon=True).start()
    windows: list[tuple[float, float, int]] = []
    while not over.is_set():
        began, count = time.monotonic(), 0
        while (now := time.monotonic()) - began < WINDOW:
            torch.mm(matrix, matrix)
            if options.device != "cpu":
                torch.cuda.synchronize()
            count += 1
        windows.append((began, now - began, count))
    emit("windows", windows=windows)


if __name__ == "__main__":
    run(main)
