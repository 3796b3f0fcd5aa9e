"""A sentinel on a simulated lane, and what its dump is made from."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.harness.waiting import wait_for
from tests.harness.whole_lines import whole_lines
from tests.integration.guarded import Guarded, Program

_LIVES_ON = """
import json, signal, sys, time
from fault_injection.sim.cuda import CudaProcess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
cuda = CudaProcess()
cuda.init()
cuda.create_context(1)
print(json.dumps({"event": "started"}), flush=True)
sys.stdin.read()
cuda.launch(0.0, "misaligned")
time.sleep(600)
"""


def culprit_that_lives_on(guarded: Guarded) -> Program:
    """A simulated client that never asks what came of the wrong it did, and heeds no SIGTERM.

    One that ended of its fault would give its code back before the dump is read, if this machine is slow.
    """
    return guarded.program([sys.executable, "-c", _LIVES_ON], stdin=subprocess.PIPE)


def do_wrong(culprit: Program) -> None:
    """Have it launch the kernel that faults."""
    assert culprit.process.stdin is not None
    culprit.process.stdin.close()


def logged(guarded: Guarded, kind: str) -> list[dict[str, Any]]:
    """The guard's own log, read from its file: nearly at once, where a command would take long."""
    lines = whole_lines(guarded.root / "guard.log")
    return [line for line in map(json.loads, filter(None, lines)) if line.get("event") == kind]


def sentinel(guarded: Guarded, count: int = 1) -> int:
    """The pid of the sentinel once it stands, for the ``count``-th time."""
    found = wait_for("a sentinel", lambda: said if len(said := logged(guarded, "sentinel_ready")) >= count else None)
    pid: int = found[count - 1]["pid"]
    return pid


def code_of(client: Program) -> int:
    """An address in what the client has reserved for its code on the GPU."""
    spans = [line.split()[0].split("-") for line in Path(f"/proc/{client.pid}/maps").read_text().splitlines()
             if " ---p 00000000 00:00 0" in line]  # fmt: skip
    sized = [(int(first, 16), int(end, 16)) for first, end in spans]
    (first,) = [first for first, end in sized if end - first == 4 << 20 and first % (2 << 20) == 0]
    return first + 0x3840
