"""One cell: the crew at work, one fault, what became of each process."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from fault_injection.catalog import Fault
from mpsguard.guard.lanes.control_process import PID_FILE
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.process import ProcessHandle
from tests.bench.core.bench import Bench, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import DIED, FAILED, Outcome
from tests.bench.triage import memory_group
from tests.bench.triage.cells import Cell, Innocent, XidSeen
from tests.bench.triage.crew import Crew, assemble, outcome
from tests.bench.triage.incidents import Incidents, wait_until
from tests.bench.triage.kernel_log import KernelLog, XidLine
from tests.bench.triage.memory_group import NoMemoryGroupError
from tests.bench.triage.verdict import Verdict, judge

_PREPARED: Final = 15.0
"""Seconds in which a fault must be prepared and injected."""
_DEATHS: Final = 1.2
"""Seconds in which the innocents die if they do; 0.43 were seen."""
_SURVIVAL: Final = 0.8
"""Seconds after which clients that live have survived."""
_ECHO: Final = 0.1
"""Seconds after the last death in which the last lines and incidents come."""
_AFTER_KILL: Final = 0.5
_ENDS: Final = {"SIGKILL": -signal.SIGKILL, "SIGSEGV": -signal.SIGSEGV, "exit": 0}
"""Exit statuses as subprocess has them."""


@dataclass(frozen=True)
class Site:
    """Where cells are made: a daemon or the guard, and the private pipe directory of the stock daemon behind it."""

    arm: str
    target: Target
    lane: Path
    incidents: Incidents | None
    prepared: Callable[[], None] = lambda: None
    """Called when the clients have come and before they are released."""
    aborts: bool = False
    """Whether a client that the fault hits is aborted by the driver, having dumped, and cannot say what hit it."""


@dataclass(frozen=True)
class _Known:
    """What stands fixed once the fault is injected."""

    at: float
    culprit: int | None
    server: int | None
    innocents: frozenset[int]

    def whose(self, pid: int | None) -> str:
        """Return the part that the process with this pid plays."""
        if pid is None:
            return "nobody"
        if pid in self.innocents:
            return "innocent"
        return "culprit" if pid == self.culprit else "server" if pid == self.server else "other"


def make(bench: Bench, site: Site, log: KernelLog, fault: Fault, repetition: int) -> Cell:
    """Inject the fault once; SuiteError or OSError if that could not be done or seen to the end."""
    with ExitStack() as stack:
        group = None
        if fault.needs:
            try:
                group = stack.enter_context(memory_group.made(f"gpu-suite-{bench.root.name}"))
            except NoMemoryGroupError as error:
                return Cell(fault.name, site.arm, repetition, skipped=f"no memory cgroup: {error}")
        clients = stack.enter_context(Clients())
        crew = assemble(bench, site.target, clients, fault, group)
        if group is not None:
            memory_group.close(group)
        servers = site.target.ui.servers()
        site.prepared()
        log.lines()
        if site.incidents is not None:
            site.incidents.begin()
        crew.go()
        known = _inject(site, crew, fault, servers[0] if servers else None)
        _watch(crew, fault, known.at, site.incidents)
        return msgspec.structs.replace(_settle(crew, fault, known, log, site), repetition=repetition)


def _inject(site: Site, crew: Crew, fault: Fault, server: int | None) -> _Known:
    innocents = frozenset(client.pid for client in crew.innocents)
    if crew.culprit is not None:
        return _Known(crew.culprit.wait_for("injected", _PREPARED).monotonic, crew.culprit.pid, server, innocents)
    for client in crew.innocents:
        client.wait_for("begin", _PREPARED)
    pid = server if fault.name == "server" else int((site.lane / PID_FILE).read_text())
    if pid is None:
        raise SuiteError(f"{site.target.name} has no server to kill")
    with ProcessHandle.open(pid) as victim:
        # The number may be stale: only a process that was started for our own pipe directory is ours to end.
        if procfs.environment(pid).get("CUDA_MPS_PIPE_DIRECTORY") != str(site.lane):
            raise SuiteError(f"process {pid} is not of {site.lane}")
        at = time.monotonic()
        victim.signal(signal.SIGKILL)
    return _Known(at, None, server, innocents)


def _watch(crew: Crew, fault: Fault, at: float, incidents: Incidents | None) -> None:
    """Wait until all that may come of it has come."""
    limit = at + (_SURVIVAL if fault.measured and not fault.innocents else _DEATHS)

    def over() -> bool:
        return all(client.seen(DIED) or client.ended_with() is not None for client in crew.innocents)

    wait_until(over, limit)
    if incidents is not None and not incidents.missing and fault.fault_class != "none":
        wait_until(lambda: bool(incidents.published()), max(limit, time.monotonic()))
    time.sleep(_ECHO)


def _settle(crew: Crew, fault: Fault, known: _Known, log: KernelLog, site: Site) -> Cell:
    """Return what became of each process; all clients have ended afterwards."""
    innocents = tuple(_innocent(client, known.at, site.aborts) for client in crew.innocents)
    lines = [line for line in log.lines() if line.at >= known.at - 0.001]
    alive = zip(crew.innocents, innocents, strict=True)
    broken = _broken([client for client, innocent in alive if innocent.after_ms is None and not innocent.code])
    culprit = crew.culprit
    hangs = fault.never_returns and culprit is not None and not culprit.seen("error")
    done, by_itself = outcome(culprit, 2.0) if culprit and not hangs else (None, False)
    # Asked after the orderly ends, which are no faults either, and before the kill of one that hangs.
    verdict = _verdict(site.incidents, fault, known) if site.incidents else None
    if culprit and hangs:
        done, by_itself = outcome(culprit, 0.05)
        time.sleep(_AFTER_KILL)  # its kernel's end is a fault of its own, and must be over before the next cell
    if done and done.find(FAILED):
        raise SuiteError(f"{fault.name} could not be injected: {done.describe()}")
    if any(innocent.after_ms is not None and innocent.after_ms < 0 for innocent in innocents):
        raise SuiteError(f"an innocent died before {fault.name} was injected: {innocents}")
    cell = Cell(
        fault.name,
        site.arm,
        0,
        returned=_code(done, "error"),
        died=_code(done, DIED),
        after_ms=_after(done, known.at),
        ended=done.exit_status if done and by_itself else None,
        innocents=innocents,
        xids=_seen(lines, known) if log.readable else None,
        verdict=verdict,
        error=broken,
    )
    return msgspec.structs.replace(cell, effects=tuple(_effects(fault, cell)))


def _code(done: Outcome | None, event: str) -> int | None:
    found = done.find(event) if done else None
    return int(found.number("code")) if found else None


def _after(done: Outcome | None, at: float) -> float | None:
    found = done.find(DIED) if done else None
    return _ms(found.monotonic - at) if found else None


def _seen(lines: Sequence[XidLine], known: _Known) -> tuple[XidSeen, ...]:
    return tuple(XidSeen(line.number, known.whose(line.pid), _ms(line.at - known.at)) for line in lines)


def _innocent(client: Client, at: float, aborts: bool) -> Innocent:
    died = client.seen(DIED)
    if died:
        return Innocent(int(died.number("code")), _ms(died.monotonic - at))
    return Innocent(-signal.SIGABRT) if aborts and client.ended_with() == -signal.SIGABRT else Innocent()


def _broken(survivors: Sequence[Client]) -> str:
    """Those that lived must finish their work in order; how the first failed that did not."""
    done = []
    for client in survivors:
        with suppress(SuiteError):
            done.append(outcome(client)[0])
    failed = [each for each in done if not each.ok and not each.find(DIED)]
    return failed[0].describe() if failed else ""


def _effects(fault: Fault, cell: Cell) -> Iterator[str]:
    """The signs that the fault happened. That its culprit was told of success is none."""
    if cell.returned or cell.died:
        yield f"culprit: {cell.returned or cell.died}"
    if dead := [innocent.code for innocent in cell.innocents if innocent.code]:
        yield f"{len(dead)} innocents died: {min(dead)}"
    if cell.xids:
        yield f"Xid {', '.join(map(str, sorted({line.number for line in cell.xids})))}"
    if fault.ends and cell.ended == _ENDS[fault.ends] and cell.returned is None:
        yield f"process ended: {fault.ends}"
    if fault.never_returns and cell.returned is None and cell.ended is None:
        yield "kernel did not end"
    if not fault.by_client:
        yield "process ended: SIGKILL"


def _verdict(incidents: Incidents, fault: Fault, known: _Known) -> Verdict:
    if incidents.missing:
        return Verdict("", why=incidents.missing)
    listed = incidents.listed()
    if fault.fault_class == "process":
        listed = [incidents.detailed(each.id) or each for each in listed]
    published = incidents.published()
    return judge(fault, known.at, culprit=known.culprit, innocents=known.innocents, published=published, listed=listed)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
