"""Prints a simulated program's events in the format of `tests.bench.core.events`."""

import json
import os
import sys
import time


def emit(event: str, **members: object) -> None:
    """Print one event in one write: several processes may share the pipe."""
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()
