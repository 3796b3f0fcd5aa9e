"""What a simulated program says of itself, in the form of `tests.gpu.core.events`."""

import json
import os
import sys
import time


def emit(event: str, **members: object) -> None:
    """One line, in one write: several processes may share the pipe."""
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()
