"""How the programs of this suite tell what they did: JSON lines, as `tests.bench.core.events` reads them."""

import json
import os
import sys
import time
from collections.abc import Callable


def emit(event: str, **members: object) -> None:
    """Print one event at once."""
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()


def run(work: Callable[[], None]) -> None:
    """Do a program's work and end it without the interpreter's own teardown, which hangs on a dead context."""
    try:
        work()
    except Exception as error:
        emit("failed", code=-1, name=f"{type(error).__name__}: {error}"[:500], call="program")
        sys.stderr.flush()
        os._exit(4)
    emit("finished")
    os._exit(0)
