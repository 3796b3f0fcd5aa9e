"""An unmodified program under the preload with a second driver: program, preload and driver are simulated.

Without MPSGUARD_SECOND_DRIVER it has none. It prints the events of `tests.bench.simulated_client`, and `went_over`.
"""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Final

if not __package__:  # started by path, so that it needs no PYTHONPATH
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.demo.said import emit
from fault_injection.sim.cuda import CudaFailureError, CudaProcess
from fault_injection.sim.second_driver import SimulatedSecondDriver

DIED, FAILED = 3, 4
_KERNEL_S: Final = 0.01
_MODE: Final = os.environ.get("MPSGUARD_SECOND_DRIVER", "off")


def _kernel(cuda: CudaProcess) -> None:
    cuda.launch(_KERNEL_S)
    cuda.synchronize()


def _watch_input(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def main() -> int:
    """Run until standard input ends, and return the exit status."""
    stop = threading.Event()
    threading.Thread(target=_watch_input, args=(stop,), daemon=True).start()
    cuda = CudaProcess()
    left: list[CudaProcess] = []
    started = False
    try:
        cuda.init()
        cuda.create_context(1)
        emit("context", mps=int(cuda.mps))
        _kernel(cuda)
        emit("first_kernel")
        started = True
        second = SimulatedSecondDriver(_MODE, "", 1) if _MODE != "off" else None
        while not stop.is_set():
            try:
                _kernel(cuda)
            except CudaFailureError:
                if second is None:
                    raise
                left.append(cuda)
                cuda = second.take_over()
                _kernel(cuda)
                emit("went_over", at=time.time())
    except CudaFailureError as failure:
        emit("died" if started else "failed", code=failure.code)
        return DIED if started else FAILED
    emit("finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
