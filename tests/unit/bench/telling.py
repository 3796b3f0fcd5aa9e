"""Programs that tell events as the CUDA clients do."""

import sys

PRELUDE = """
import json, os, sys, time
def emit(event, **more):
    head = dict(event=event, pid=os.getpid(), monotonic=time.monotonic(), realtime=time.time())
    print(json.dumps(head | more), flush=True)
"""


def program(text: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE + text]
