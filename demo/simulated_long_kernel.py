"""A simulated client whose kernel takes long: killed at any moment after `begin`, it dies with work in flight.

Speaks the events of `gpu_suite.simulated_client`.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Final

if not __package__:  # started by path, so that it needs no PYTHONPATH
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fault_injection.sim.cuda import CudaFailureError, CudaProcess

DIED, FAILED = 3, 4
_KERNEL_S: Final = 60.0


def main() -> int:
    """Run the client; the exit status."""
    cuda = CudaProcess()
    started = False
    try:
        _emit("init_begin")
        cuda.init()
        _emit("init_end")
        cuda.create_context(1)
        _emit("context", mps=int(cuda.mps))
        cuda.launch(0.001)
        cuda.synchronize()
        _emit("first_kernel")
        started = True
        if os.read(0, 64):
            cuda.launch(_KERNEL_S)
            _emit("begin")
            cuda.synchronize()
    except CudaFailureError as failure:
        _emit("died" if started else "failed", code=failure.code)
        return DIED if started else FAILED
    _emit("finished")
    cuda.close()
    return 0


def _emit(event: str, **members: object) -> None:
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
