"""A PyTorch program like any other: a loop of matrix products. It knows nothing of mpsguard; it only reports.

Takes `--seconds` and `--controlled` and prints the same events as `worker.cu` beside it (one JSON object a line), and
`imported` once PyTorch is loaded. Exit status: 0 finished, 3 died of a CUDA error, 4 no context or no first kernel.
It runs under the interpreter that holds PyTorch, so it imports nothing of this project.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import threading
import time
from typing import Any

DIED, FAILED = 3, 4


def emit(event: str, **members: object) -> None:
    """Print one event at once."""
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()


class Control:
    """Standard input as two signals: the first line (or the end) releases the loop, the end asks it to stop."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.stop = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for _line in sys.stdin:
            self.go.set()
        self.stop.set()
        self.go.set()


def loop(torch: Any, matrix: Any, seconds: float, stop: threading.Event) -> int:
    """Multiply for `seconds`; the exit status."""
    begin = last = time.monotonic()
    iterations, max_gap = 0, 0.0
    emit("begin")
    while time.monotonic() - begin < seconds and not stop.is_set():
        try:
            matrix = torch.matmul(matrix, matrix).tanh()  # tanh keeps the values finite
            torch.cuda.synchronize()
        except RuntimeError as error:
            emit("died", code=-1, name=str(error).splitlines()[0], iterations=iterations, last_success=last)
            return DIED
        now = time.monotonic()
        iterations += 1
        max_gap, last = max(max_gap, now - last), now
    emit("finished", iterations=iterations, seconds=time.monotonic() - begin, max_gap=max_gap)
    return 0


def main() -> int:
    """Run the client."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--controlled", action="store_true")
    options = parser.parse_args()

    emit("start")
    torch = importlib.import_module("torch")  # here: its seconds belong between two events

    emit("imported", version=torch.__version__)
    emit("init_begin")
    try:
        torch.cuda.init()
        emit("context")
        matrix = torch.randn(2048, 2048, device="cuda")
        torch.matmul(matrix, matrix)
        torch.cuda.synchronize()
    except RuntimeError as error:
        emit("failed", code=-1, name=str(error).splitlines()[0], call="torch.cuda")
        return FAILED
    emit("first_kernel")
    control = Control()
    if options.controlled:
        control.go.wait()
        return loop(torch, matrix, options.seconds, control.stop)
    return loop(torch, matrix, options.seconds, threading.Event())


if __name__ == "__main__":
    # Straight out when the context is dead: PyTorch's own teardown would make CUDA calls that may never return.
    status = main()
    if status:
        os._exit(status)
    sys.exit(status)
