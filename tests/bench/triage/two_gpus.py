"""Memory faults in one domain over two GPUs: whether each culprit is proven, and on what ground.

Beside the rows, each fault's evidence goes to `triage-two-gpus-YYYYMMDD.json` in the directory of `--out`: what the
verdict rested on, which clients and states of the lane came before, and the bundles of verdicts that are not proven,
which replay. A domain of one GPU is measured beside it, so that what has to do with the number of GPUs shows.
"""

import datetime
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import DIED, FAILED
from tests.bench.core.finding import Finding, all_of, none_of
from tests.bench.core.gpus import uuids
from tests.bench.core.guard import Guard, Options
from tests.bench.core.programs import Work
from tests.bench.triage.incidents import Incidents, wait_until
from tests.bench.triage.verdict import Report

FAULTS: Final = ("far", "null", "readonly", "near")
ORPHANS, QUICK_ORPHANS = 4, 2
_ORPHAN: Final = 2.5
"""Seconds in which work that was left faults in a newcomer's queue; 0.9 were seen."""
_READY: Final = 20.0
_TOLD: Final = 1.5
"""Seconds in which the incident is published and the innocents have died."""
_SETTLED: Final = 0.4
"""Seconds in which the verdict is judged again: the kernel log's line comes 0.15 s after the fault."""
_RECOVERED: Final = 8.0
_BUNDLES: Final = 4
"""Bundles kept of verdicts that are not proven."""


@dataclass(frozen=True)
class Cell:
    """One fault: what the innocents and the culprit see of the GPUs (CUDA_VISIBLE_DEVICES), and what came before."""

    name: str
    innocents: tuple[str, ...]
    culprit: str
    visitor: bool = False
    """Whether a client comes before all others, and ends as it should."""


BOTH: Final = ("0", "1")
CELLS: Final = (
    Cell("first: clients on both GPUs, fault on GPU 0", BOTH, "0", visitor=True),
    Cell("clients on both GPUs, fault on GPU 1", BOTH, "1"),
    Cell("clients on GPU 0 alone", ("0", "0"), "0"),
    Cell("clients on GPU 1 alone", ("1", "1"), "1"),
    Cell("clients that see both GPUs, fault on GPU 0", ("0,1", "1,0"), "0,1"),
    Cell("clients that see both GPUs, fault on GPU 1", ("0,1", "1,0"), "1,0"),
    Cell("a client alone, on GPU 0", (), "0"),
    Cell("a client alone, on GPU 1", (), "1"),
    Cell("after a client that left: clients on both GPUs, fault on GPU 1", BOTH, "1", visitor=True),
    Cell("clients on both GPUs, fault on GPU 0", BOTH, "0"),
)
"""Made twice, each time by a guard of its own: 20 faults."""
CONTROL: Final = (
    Cell("one GPU, first", ("0", "0"), "0", visitor=True),
    Cell("one GPU", ("0", "0"), "0"),
    Cell("one GPU, after a client that left", ("0", "0"), "0", visitor=True),
)


class Told(msgspec.Struct, frozen=True):
    """What came of one fault. Times are seconds after the access."""

    cell: str
    fault: str
    culprit: int
    innocents: tuple[int, ...]
    right: bool
    proven: bool
    verdicts: tuple[dict[str, Any], ...]
    """Incidents as recorded, without their evidence: ground, reason, what is missing, confidence."""
    evidence: tuple[dict[str, Any], ...]
    """Of the bundle, in order of time, with the part that the process plays."""
    lane_states: tuple[dict[str, Any], ...]
    """Events `lane_state` of the guard so far, the newest eight."""
    watched: tuple[str, ...]
    """Why each client was not watched just before the fault; "" if it was."""


@dataclass
class Study:
    """One run, and what it found."""

    bench: Bench
    told: list[Told] = field(default_factory=list)
    control: list[Told] = field(default_factory=list)
    orphans: list[Told] = field(default_factory=list)
    bundles: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def make(self, cards: Sequence[str]) -> None:
        """Make all cells; what cannot be made is noted, and the others are made."""
        rounds = self.bench.runs(2, 1)
        for _ in range(rounds):
            self._under_one_guard(tuple(cards[:2]), CELLS, self.told)
        self._under_one_guard(tuple(cards[:1]), CONTROL, self.control)
        self._orphans(tuple(cards[:1]))

    def _orphans(self, cards: tuple[str, ...]) -> None:
        """Kill a client alone with work in flight, which no lifeline keeps, and let others come to that lane."""
        with ExitStack() as stack:
            guard = stack.enter_context(self.bench.guard(options=Options(gpus=cards, crash_hold=0)))
            lane, _ = guard.lane()
            incidents = stack.enter_context(Incidents(Path(lane.pipe_directory).parents[2]))
            for number in range(self.bench.runs(ORPHANS, QUICK_ORPHANS)):
                try:
                    told = self._orphan(guard, incidents)
                except (SuiteError, OSError, ValueError) as error:
                    self.errors.append(f"orphan {number}: {error}"[:400])
                    self.bench.say(self.errors[-1])
                    continue
                self.orphans.append(told)
                self.bench.say(_line(told))

    def _orphan(self, guard: Guard, incidents: Incidents) -> Told:
        incidents.begin()
        with Clients() as clients:
            work = Work(seconds=60, controlled=True, fault="kill", fault_at=0.05)
            killed = clients.start(self.bench.programs.worker(work), guard.pipe_directory, "killed", _sees("0"))
            killed.wait_for("first_kernel", _READY)
            killed.go()
            at = killed.wait_for("injected", _READY).monotonic
            killed.finish(_READY)
            innocent = self.bench.programs.worker(Work(seconds=60, controlled=True))
            crew = [clients.start(innocent, guard.pipe_directory, "newcomer", _sees("0")) for _ in range(2)]
            # Work that faults in their queues ends them; else they have lived when the time is over.
            wait_until(lambda: all(each.ended_with() is not None for each in crew), time.monotonic() + _ORPHAN)
            known = (at, killed.pid, [client.pid for client in crew], ())
            return self._told(guard, incidents, Cell("killed alone, then newcomers", ("0", "0"), "0"), "kill", known)

    def _under_one_guard(self, cards: tuple[str, ...], cells: Sequence[Cell], into: list[Told]) -> None:
        with ExitStack() as stack:
            guard = stack.enter_context(self.bench.guard(options=Options(gpus=cards)))
            lane, _ = guard.lane()
            incidents = stack.enter_context(Incidents(Path(lane.pipe_directory).parents[2]))
            if incidents.missing:
                raise SuiteError(incidents.missing)
            for cell in cells:
                fault = FAULTS[(len(self.told) + len(self.control)) % len(FAULTS)]
                try:
                    told = self._fault(guard, incidents, cell, fault)
                except (SuiteError, OSError, ValueError) as error:  # TimeoutError is an OSError
                    self.errors.append(f"{cell.name} ({fault}): {error}"[:400])
                    self.bench.say(self.errors[-1])
                    continue
                into.append(told)
                grounds = ", ".join(f"{each['confidence']} {each['ground']}" for each in told.verdicts)
                self.bench.say(f"{cell.name} ({fault}): {grounds or 'no incident'}")

    def _fault(self, guard: Guard, incidents: Incidents, cell: Cell, fault: str) -> Told:
        if cell.visitor:
            with Clients() as clients:
                worker = self.bench.programs.worker(Work(seconds=0))
                clients.start(worker, guard.pipe_directory, "visitor", _sees("0")).finish(_READY)
        with Clients() as clients:
            crew = self._crew(guard, clients, cell, fault)
            watches = {each.pid: each.reason for each in guard.watches()}
            watched = tuple(watches.get(client.pid, "no client of the guard") for client in crew)
            incidents.begin()
            for client in crew:
                client.go()
            culprit, innocents = crew[-1], crew[:-1]
            at = culprit.wait_for("injected", _READY).monotonic

            def over() -> bool:
                dead = all(client.seen(DIED) or client.ended_with() is not None for client in innocents)
                return dead and bool(incidents.published())

            wait_until(over, at + _TOLD)
            time.sleep(_SETTLED)
            return self._told(guard, incidents, cell, fault, (at, culprit.pid, [c.pid for c in innocents], watched))

    def _crew(self, guard: Guard, clients: Clients, cell: Cell, fault: str) -> list[Client]:
        """Start the innocents and then the culprit, again for as long as the server recovers from the last fault."""
        limit = time.monotonic() + _RECOVERED
        innocent = self.bench.programs.worker(Work(seconds=60, controlled=True))
        faulty = self.bench.programs.worker(Work(seconds=60, controlled=True, fault=fault, fault_at=0.05))
        while True:
            crew = [clients.start(innocent, guard.pipe_directory, "innocent", _sees(sees)) for sees in cell.innocents]
            crew.append(clients.start(faulty, guard.pipe_directory, "culprit", _sees(cell.culprit)))
            try:
                for client in crew:
                    client.wait_for("first_kernel", _READY)
            except SuiteError:
                if time.monotonic() > limit or not any(client.seen(FAILED) for client in crew):
                    raise
                for client in crew:
                    client.end(grace=1.0)
                time.sleep(0.1)  # a new try, not a wait: the next one asks the server again
                continue
            return crew

    def _told(
        self,
        guard: Guard,
        incidents: Incidents,
        cell: Cell,
        fault: str,
        known: tuple[float, int, list[int], tuple[str, ...]],
    ) -> Told:
        at, culprit, innocents, watched = known
        listed = incidents.listed()
        bundles = [bundle for each in listed if (bundle := incidents.export(each.id)) is not None]
        verdicts = [_without_evidence(bundle) for bundle in bundles]
        right = _right(listed, culprit)
        proven = right and any(each.culprit == culprit and each.confidence == "proven" for each in listed)
        if not proven and len(self.bundles) < _BUNDLES:
            self.bundles += bundles
        roles = {culprit: "culprit"} | dict.fromkeys(innocents, "innocent")
        seen = {json.dumps(e, sort_keys=True): e for bundle in bundles for e in _evidence(bundle)}
        return Told(
            cell.name,
            fault,
            culprit,
            tuple(innocents),
            right,
            proven,
            tuple(verdicts),
            tuple(_short(each, at, roles) for each in seen.values()),
            tuple(guard.lane_states()[-8:]),
            watched,
        )


def measure(bench: Bench) -> Iterator[Finding]:
    """All faults; rows where there are two GPUs, and none elsewhere."""
    cards = [] if bench.programs.simulated else uuids()
    if len(cards) < 2:
        bench.say("two_gpus: needs a machine with two GPUs")
        return
    study = Study(bench)
    try:
        study.make(cards)
    finally:  # also when the run is stopped: what was seen is kept
        _keep(study)
    wanted = len(CELLS) * bench.runs(2, 1)
    note = "; ".join([*map(_line, study.told), *study.errors])
    right = sum(each.right for each in study.told)
    yield all_of("two GPUs in a domain: culprits of memory faults named right", right, wanted, "faults")
    proven = sum(each.proven for each in study.told)
    yield all_of("two GPUs in a domain: culprits of memory faults proven", proven, wanted, "faults", note=note)
    proven = sum(each.proven for each in study.control)
    note = "; ".join(map(_line, study.control))
    yield all_of("one GPU in a domain: culprits of memory faults proven", proven, len(CONTROL), "faults", note=note)
    accused = [each for each in study.orphans if _proves_an_innocent(each)]
    yield none_of(
        "clients killed alone with work in flight: newcomers that were proven guilty of it",
        len(accused),
        len(study.orphans),
        "kills",
        note="; ".join(map(_line, study.orphans)),
    )


def _keep(study: Study) -> None:
    content = {
        "faults": study.told,
        "control": study.control,
        "orphans": study.orphans,
        "errors": study.errors,
        "bundles": study.bundles,
    }
    if study.bench.out is not None:
        date = datetime.datetime.now(tz=datetime.UTC).strftime("%Y%m%d")
        (study.bench.out / f"triage-two-gpus-{date}.json").write_bytes(msgspec.json.encode(content))


def _line(told: Told) -> str:
    verdicts = ", ".join(f"{each['confidence']} ({each['ground']})" for each in told.verdicts)
    wrong = any((each["culprit"] or {}).get("pid", told.culprit) != told.culprit for each in told.verdicts)
    return f"{told.cell}: {'WRONG ' if wrong else ''}{verdicts or 'no incident'}"


def _proves_an_innocent(told: Told) -> bool:
    return any(
        each["confidence"] == "proven" and (each["culprit"] or {}).get("pid") in told.innocents
        for each in told.verdicts
    )


def _right(listed: Sequence[Report], culprit: int) -> bool:
    named = {each.culprit for each in listed if each.culprit is not None}
    return named == {culprit}


def _sees(devices: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": devices}


def _without_evidence(bundle: dict[str, Any]) -> dict[str, Any]:
    incident = bundle["record"]["incident"]
    return {key: value for key, value in incident.items() if key != "evidence"} | {"ground": incident.get("ground")}


def _evidence(bundle: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted([*bundle["evidence"], *bundle["record"]["incident"]["evidence"]], key=_when)


def _when(evidence: dict[str, Any]) -> float:
    happened = evidence.get("happened_at")
    return float(evidence["observed_at"] if happened is None else happened)


def _short(evidence: dict[str, Any], at: float, roles: dict[int, str]) -> dict[str, Any]:
    pid = (evidence.get("process") or {}).get("pid")
    return {
        "after": round(_when(evidence) - at, 4),
        "seen_after": round(evidence["observed_at"] - at, 4),
        "source": evidence["source"],
        "what": evidence["what"],
        "gpu": evidence.get("gpu"),
        "whose": None if pid is None else f"{pid} {roles.get(pid, 'other')}",
        "trust": evidence.get("trust"),
    }


MEASUREMENT: Final = Measurement(
    "two_gpus", "memory faults in a domain of two GPUs: is each culprit proven; needs a machine with two", measure
)
