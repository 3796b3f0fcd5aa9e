"""A simulated client with a long kernel: if it is killed after `begin`, it dies with work in flight.

It prints the events of `tests.bench.simulated_client`.
"""

import os
import sys
from pathlib import Path
from typing import Final

if not __package__:  # started by path, so that it needs no PYTHONPATH
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.demo.said import emit
from fault_injection.sim.cuda import CudaFailureError, CudaProcess

DIED, FAILED = 3, 4
_KERNEL_S: Final = 3.0


def main() -> int:
    """Run the client and return the exit status."""
    cuda = CudaProcess()
    started = False
    try:
        emit("init_begin")
        cuda.init()
        emit("init_end")
        cuda.create_context(1)
        emit("context", mps=int(cuda.mps))
        cuda.launch(0.001)
        cuda.synchronize()
        emit("first_kernel")
        started = True
        if os.read(0, 64):
            cuda.launch(_KERNEL_S)
            emit("begin")
            cuda.synchronize()
    except CudaFailureError as failure:
        emit("died" if started else "failed", code=failure.code)
        return DIED if started else FAILED
    emit("finished")
    cuda.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
