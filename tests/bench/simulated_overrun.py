"""`zone_overrun.cu` on the simulated CUDA: its events; MPSGUARD_ZONES=on stands for zones that serve the access."""

import argparse
import json
import os
import sys
import time
from pathlib import Path

if not __package__:  # started by path, so that it needs no PYTHONPATH
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fault_injection.sim import misdeed
from fault_injection.sim.cuda import CudaFailureError, CudaProcess

DIED = 3


def main() -> int:
    """Run it; the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--controlled", action="store_true")
    parser.add_argument("--past", type=int, default=0)
    parser.add_argument("--before", type=int, default=0)
    parser.add_argument("--access", choices=("write", "read", "atomic"), default="write")
    parser.add_argument("--by", choices=("runtime", "driver", "ordered"), default="runtime")
    options = parser.parse_args()
    _emit("start")
    cuda = CudaProcess()
    cuda.init()
    cuda.create_context(4)
    _emit("allocated", address=0, bytes=4 << 20)
    if options.controlled and not sys.stdin.readline():
        return 0
    _emit("injected", address=options.past - options.before)
    try:
        if os.environ.get("MPSGUARD_ZONES") == "on":
            cuda.launch(0.0)
        else:
            misdeed.prepared(cuda, "near")()
        cuda.synchronize()
    except CudaFailureError as failure:
        _emit("error", code=failure.code, name="simulated")
        return DIED
    _emit("error", code=0, name="simulated")
    _emit("intact", value=True)
    cuda.close()
    _emit("finished")
    return 0


def _emit(event: str, **members: object) -> None:
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
