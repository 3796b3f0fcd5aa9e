"""`worker.cu` on the simulated CUDA: the same options, events and exit statuses, timers in the place of kernels."""

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path

if not __package__:  # started by path, so that it needs no PYTHONPATH
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fault_injection.sim.cuda import CudaFailureError, CudaProcess

DIED, FAILED = 3, 4
KERNEL_S = 0.005
"""Longer than a real one: client and server of the simulation are Python, and each kernel costs them processor time."""


class Progress:
    """Kernels that came back, since when, and the longest time between two of them."""

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.iterations = 0
        self.last = 0.0
        self.max_gap = 0.0

    def kernel_done(self, now: float) -> None:
        """Count one."""
        self.iterations += 1
        self.max_gap = max(self.max_gap, now - (self.last or self.begin))
        self.last = now


def main() -> int:
    """Run the client; the exit status."""
    options = _parser().parse_args()
    if options.fault:
        # Now: to read the table takes longer than a fault may.
        import fault_injection.sim.misdeed  # noqa: F401, PLC0415 - most clients do nothing wrong
    cuda = CudaProcess()
    _emit("start")
    try:
        _emit("init_begin")
        cuda.init()
        _emit("init_end")
        cuda.create_context(max(1, options.memory >> 20))
        _emit("context", mps=int(cuda.mps))
        _kernel(cuda)
    except CudaFailureError as failure:
        _emit("failed", code=failure.code, name=failure.__class__.__name__, call="simulated")
        return FAILED
    _emit("first_kernel")
    go, stop = threading.Semaphore(0), threading.Event()
    if options.controlled:
        threading.Thread(target=_listen, args=(go, stop, options.rounds), daemon=True).start()
    progress = Progress(0.0)
    try:
        for _ in range(options.rounds):
            if options.controlled:
                go.acquire()
            progress = Progress(time.monotonic())
            _loop(options, cuda, stop, progress)
            if options.rounds > 1:
                _report("round", progress)
    except CudaFailureError as failure:
        _emit("died", code=failure.code, name="simulated", iterations=progress.iterations, last_success=progress.last)
        return DIED
    _report("finished", progress)
    cuda.close()
    return 0


def _loop(options: argparse.Namespace, cuda: CudaProcess, stop: threading.Event, progress: Progress) -> None:
    second = Progress(progress.begin)
    fault = options.fault
    _emit("begin")
    while time.monotonic() - progress.begin < options.seconds and not stop.is_set():
        _kernel(cuda)
        now = time.monotonic()
        progress.kernel_done(now)
        second.kernel_done(now)
        if now - second.begin >= 1.0:
            _report("second", second)
            second = Progress(now)
        if fault and now - progress.begin >= options.fault_at:
            _commit(cuda, fault, options.in_flight)
            fault = None


def _commit(cuda: CudaProcess, fault: str, in_flight: float | None) -> None:
    from fault_injection import catalog  # noqa: PLC0415 - see above
    from fault_injection.sim import misdeed  # noqa: PLC0415

    row = catalog.named(fault)
    busy = bool(row.in_flight)
    _emit("fault", kind=fault)
    commit = misdeed.prepared(cuda, fault, in_flight)
    if busy:
        _emit("running", seconds=in_flight or 0.0)
    _emit("injected", kind=fault, in_flight=int(busy))
    try:
        commit()
        if row.never_returns:
            _emit("running", seconds=in_flight or 0.0)
        cuda.synchronize()
    except CudaFailureError as failure:
        _emit("error", code=failure.code, name="simulated")
        raise
    _emit("error", code=0, name="simulated")


def _kernel(cuda: CudaProcess) -> None:
    cuda.launch(KERNEL_S)
    cuda.synchronize()
    if not cuda.mps:
        time.sleep(KERNEL_S)


def _listen(go: threading.Semaphore, stop: threading.Event, rounds: int) -> None:
    while said := os.read(0, 64):  # not sys.stdin: its lock would be held when the interpreter ends
        for _ in range(said.count(b"\n")):
            go.release()
    stop.set()
    go.release(rounds)


def _report(event: str, progress: Progress) -> None:
    seconds = time.monotonic() - progress.begin
    _emit(event, iterations=progress.iterations, seconds=seconds, max_gap=progress.max_gap)


def _emit(event: str, **members: object) -> None:
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--work", type=int, default=200)
    parser.add_argument("--controlled", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--blocking", action="store_true", help="as these clients wait anyway")
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument("--managed", action="store_true", help="as all memory is the host's")
    parser.add_argument("--in-flight", type=float)
    parser.add_argument("--fault")
    parser.add_argument("--at", "--fault-at", dest="fault_at", type=float, default=0.0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
