"""A co-tenant's SM fault during a start: the start is repeated by another worker, and the program sees one answer."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.bench.checkpoint.place import store_for
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, all_of
from tests.bench.failover.rounds import start_culprit
from tests.bench.start.place import MIB, models, pool

FAULT: Final = "misaligned"
_BUSY: Final = 2.0
"""Seconds of GPU work in the midst of the start."""
_REPEATED: Final = 200.0


def measure(bench: Bench) -> Iterator[Finding]:
    """Without a GPU the worker is killed in the place of the fault."""
    simulated = bench.programs.simulated
    kind = "small-gpt2" if simulated else "gpt2"
    directory, _ = store_for(bench, "fault", 2, 8 * MIB if simulated else 300 * MIB)
    with (
        bench.guard() as guard,
        Clients() as clients,
        models(bench, clients, guard, directory, kind=kind) as made,
        pool(bench, clients, guard, made, kind, workers=2, gpu=made.size, pinned=made.size) as served,
        ThreadPoolExecutor(1) as thread,
    ):
        served.wait(2)
        prepared = len(served.notes())
        culprit = None if simulated else start_culprit(bench, guard, clients, FAULT, 0.0)
        mark = directory / "mark"
        name = made.names[0]
        began = time.monotonic()
        running = thread.submit(served.start, name, "pinned", busy=_BUSY, mark=str(mark))
        pid = _wait_for(mark)
        if culprit is None:
            os.kill(pid, signal.SIGKILL)
        else:
            culprit.go()
        start = running.result(_REPEATED)
        seconds = time.monotonic() - began
        with start.connection:
            another = int(mark.read_text()) != pid
            right = served.right(name, start)
            start.connection.sendall(b"d")
            alone = start.connection.recv(2) == b"\n"
        more = len(served.notes()) - prepared
    yield all_of(
        "a co-tenant's SM fault during a start: the start is repeated, and the program gets one right answer",
        int(another) + int(right) + int(alone),
        3,
        "of: another worker, right, one answer",
        note=f"{seconds:.1f} s from the request to the answer, {more} workers prepared anew meanwhile",
    )


def _wait_for(mark: "os.PathLike[str]") -> int:
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        try:
            with open(mark) as file:
                if text := file.read():
                    return int(text)
        except FileNotFoundError:
            pass
        time.sleep(0.01)
    raise SuiteError("no worker began the start within 60 s")


MEASUREMENT: Final = Measurement("fault", "a co-tenant's SM fault during a start", measure)
