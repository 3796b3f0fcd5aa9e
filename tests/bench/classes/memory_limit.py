"""Memory limits of classes: clients that shed theirs are found and ended; one that keeps to it is never accused."""

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from mpsguard.guard.incidents.memory_limits import TOLERANCE
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Client, Clients
from tests.bench.core.cpu_time import share, usage
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, all_of, none_of, sampled
from tests.bench.core.guard import Guard, Options
from tests.bench.core.programs import Work

VARIABLE: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
LIMIT: Final = 10 << 30
WANTED: Final = 40 << 30
SHEDDING: Final = ("0=2G,1=4G", "1=4G", "x=y")
"""Values with which a client has no limit (H100, 580.159.04)."""
HONEST: Final = (None, "0=20G", "0=9G")
"""Values with which it keeps one; None: the variable is not set."""
CLASSES: Final = {"all": 'default = true, memory_limit = { 0 = "10G" }, memory_over = "terminate"'}
FOUND_S: Final = 1.0
CPU_BAR: Final = 0.1
"""Percent of a core, for the readings of NVML."""
INNOCENTS: Final = 2
_ENDED: Final = 8.0
_FILLED: Final = 15.0
_FILLER: Final = Path(__file__).resolve().parents[3] / "fault_injection" / "cuda" / "memory_filler.py"
_POLL: Final = 0.02


class _Shed(NamedTuple):
    """What became of a client that shed its limit."""

    value: str
    held: int
    """Bytes that it had when it was ended, or after all that it tried."""
    found_s: float | None
    """From the allocation that went beyond limit and tolerance to the event."""
    ended: bool


def measure(bench: Bench) -> Iterator[Finding]:
    """Honest clients first, then those that shed their limits, with innocents at work beside them."""
    if bench.programs.simulated:
        bench.say("memory_limit: a simulated GPU has no libcuda to allocate by")
        return
    with bench.guard(options=Options(classes=CLASSES, crash_hold=0)) as guard, Clients() as clients:
        work = Work(seconds=300, controlled=True, blocking=True)
        at_rest = _cost(bench, guard)
        innocents = bench.workers(clients, guard, INNOCENTS, work)
        for client in innocents:
            client.go()
        with _Nvml() as nvml:
            above = [_honest(bench, guard, nvml, value) for value in HONEST]
        accused = guard.events_of("memory_limit_exceeded")
        cost = _cost(bench, guard) - at_rest
        shed = [_shedding(guard, value) for value in SHEDDING]
        for client in innocents:
            client.stop()
        failed = [outcome for client in innocents if not (outcome := client.finish()).ok]
    note = "; ".join(f"{each.value}: {each.held >> 20} MiB, ended {each.ended}" for each in shed)
    yield all_of("clients that shed a limit of 10G: ended by policy", sum(e.ended for e in shed), len(shed), "clients")
    found = [each.found_s for each in shed if each.found_s is not None]
    yield sampled(
        "clients that shed a limit of 10G: from the excess to the event",
        found or [float("inf")],
        unit="s",
        bar=f"each <= {FOUND_S:g} s",
        holds=len(found) == len(shed) and max(found) <= FOUND_S,
        note=note,
    )
    yield none_of("honest clients at their limit that were accused", len(accused), len(HONEST), "clients")
    yield sampled(
        "honest clients at their limit: MiB above it by NVML",
        [each / (1 << 20) for each in above],
        unit="MiB",
        bar=f"each <= {TOLERANCE >> 20} MiB, the tolerance",
        holds=max(above) <= TOLERANCE,
        note=", ".join(
            f"{value or 'not set'}: {size / (1 << 20):.0f}" for value, size in zip(HONEST, above, strict=True)
        ),
    )
    yield sampled(
        "CPU time of the guard's threads beside its loop, over that without clients, while limits are watched",
        [cost],
        unit="%",
        bar=f"<= {CPU_BAR:g} % of a core",
        holds=cost <= CPU_BAR,
    )
    yield none_of(
        "innocents that died beside clients that were ended",
        len(failed),
        INNOCENTS,
        "clients",
        note="; ".join(outcome.describe() for outcome in failed),
    )


class _Nvml:
    """NVML's word on the clients of GPU 0, by a library of the suite's own."""

    def __enter__(self) -> "_Nvml":
        self._library: Any = importlib.import_module("pynvml")
        self._library.nvmlInit()
        self._gpu = self._library.nvmlDeviceGetHandleByIndex(0)
        return self

    def __exit__(self, *_: object) -> None:
        self._library.nvmlShutdown()

    def bytes_of(self, pid: int) -> int:
        """Return what a client has; 0 if it is not listed."""
        found = self._library.nvmlDeviceGetMPSComputeRunningProcesses(self._gpu)
        return next((int(each.usedGpuMemory or 0) for each in found if each.pid == pid), 0)


def _filler(clients: Clients, guard: Guard, value: str | None, most: int, piece: int) -> Client:
    argv = [sys.executable, str(_FILLER), "--most", str(most), "--piece", str(piece), "--over", str(LIMIT + TOLERANCE)]
    variables = {"CUDA_VISIBLE_DEVICES": "0"} | ({VARIABLE: value} if value is not None else {})
    return clients.start(argv, guard.pipe_directory, f"filler {value}", variables)


def _honest(bench: Bench, guard: Guard, nvml: _Nvml, value: str | None) -> int:
    """Let a client take all that it gets; by how much that is above its limit, as NVML has it."""
    own = 9 << 30 if value == "0=9G" else LIMIT
    with Clients() as clients:
        client = _filler(clients, guard, value, WANTED, 64 << 20)
        filled = client.wait_for("filled", _FILLED)
        if not filled.number("code"):
            raise SuiteError(f"{value}: a client that should have been refused was not: {filled.members}")
        has = nvml.bytes_of(client.pid)
        time.sleep(2 * FOUND_S)  # a time in which it must not be accused: there is no event to wait for
        bench.say(f"{value or 'no variable'}: allocated {filled.number('bytes') / (1 << 20):.0f} MiB, NVML {has >> 20}")
        if not has:
            raise SuiteError(f"NVML does not list client {client.pid}")
    return has - own


def _shedding(guard: Guard, value: str) -> _Shed:
    """Let a client take what its environment lets it have, and wait for its end."""
    with Clients() as clients:
        client = _filler(clients, guard, value, WANTED, 1 << 30)
        client.wait_for("start", _FILLED)
        ends = time.monotonic() + _ENDED
        while client.ended_with() is None and time.monotonic() < ends:
            time.sleep(_POLL)
        status, pid = client.ended_with(), client.pid
        outcome = client.finish() if status is not None else None
        over, filled = client.seen("over"), client.seen("filled")
        if over is None:
            raise SuiteError(
                f"{value}: it never had more than its limit: {outcome.describe() if outcome else 'it lives'}"
            )
    events = guard.events_of("memory_limit_exceeded")
    told = next((each["time"] for each in events if each["data"]["pid"] == pid), None)
    found = told - over.realtime if told is not None else None
    # By a signal: a client that could not go on by itself was not ended.
    return _Shed(value, int((filled or over).number("bytes")), found, status is not None and status < 0)


def _cost(bench: Bench, guard: Guard) -> float:
    """Return what the guard's threads beside its event loop use: NVML's is among them."""
    before = usage(guard.pid)
    time.sleep(bench.runs(5, 1))  # the time that is measured
    return share(guard.pid, before, usage(guard.pid)).others


MEASUREMENT: Final = Measurement(
    "memory_limit", "clients that shed the memory limit of their class: found, ended, nobody else accused", measure
)
