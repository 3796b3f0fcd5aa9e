"""`exec_away.cu` on the simulated CUDA: no kernel is in flight, for what outlives its client cannot be simulated."""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from fault_injection.sim.cuda import CudaProcess


def main() -> None:
    """Run the client until it is `sleep`."""
    cuda = CudaProcess()
    cuda.init()
    cuda.create_context(1)
    cuda.launch(0.001)
    cuda.synchronize()
    _emit("first_kernel")
    if not os.read(0, 1):
        return
    _emit("running", seconds=float(sys.argv[1]))
    _emit("injected", in_flight=1)
    os.execv("/bin/sleep", ["sleep", "60"])  # the point of it


def _emit(event: str, **members: object) -> None:
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
