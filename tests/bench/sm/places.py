"""Whether the place (GPC, TPC) that Xid 13 names can tell clients on SMs of their own from each other.

The stock driver says neither which SMs a client has nor how SM numbers and places go together, so this is worth
something only to a guard that has learnt the map from earlier faults.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding
from tests.bench.core.programs import CudaPrograms
from tests.bench.results.schema import Row
from tests.bench.triage.kernel_log import KMSG

GROUPS: Final = 4
ROUNDS: Final = 3
_PLACE: Final = re.compile(r"NVRM: Xid \([^)]*\): 13, .*\(GPC (\d+), TPC (\d+), SM \d+\)")
_PATIENCE: Final = 20.0


def measure(bench: Bench) -> Iterator[Finding]:
    """Each group in turn is the culprit, over and over; a fault counts if its place was its group's before, only."""
    if not isinstance(bench.programs, CudaPrograms):
        bench.say("places: a simulated fault has no place")
        return
    seen: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    told = right = wrong = 0
    with bench.stock() as stock:
        for number in range(bench.runs(ROUNDS, 1) * GROUPS):
            group = number % GROUPS
            bench.warm_up(stock)
            places = _fault(bench.programs, stock, group)
            if number >= GROUPS:
                told += 1
                known = set().union(*(seen[place] for place in places)) if places else set()
                right += known == {group}
                wrong += bool(known) and known != {group}
            for place in places:
                seen[place].add(group)
            bench.say(f"places: group {group} at {sorted(places)}")
    shared = sum(len(groups) > 1 for groups in seen.values())
    note = f"{len(seen)} places seen, {shared} of them of more than one group; {wrong} faults pointed elsewhere"
    row = Row(
        name="place of Xid 13, clients on SMs of their own, after one fault each: culprit right",
        value=right,
        count=told,
        unit="faults",
        bar="reported",
        holds=told > 0,
        runs=told,
    )
    yield Finding(row, note)


def _fault(programs: CudaPrograms, target: Target, group: int) -> set[tuple[int, int]]:
    log = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.lseek(log, 0, os.SEEK_END)
        with Clients() as clients:
            started = [
                clients.start(
                    programs.partitioned(each, GROUPS, fault=each == group), target.pipe_directory, f"group-{each}"
                )
                for each in range(GROUPS)
            ]
            for client in started:
                client.wait_for("first_kernel", _PATIENCE)
            for client in started:
                client.go()
            for client in started:
                with suppress(SuiteError):
                    client.finish(_PATIENCE)
        return _places(log)  # all clients have died of it: the lines were there before
    finally:
        os.close(log)


def _places(log: int) -> set[tuple[int, int]]:
    places: set[tuple[int, int]] = set()
    while True:
        try:
            record = os.read(log, 8192)
        except BlockingIOError:
            return places
        if found := _PLACE.search(record.decode(errors="replace")):
            places.add((int(found[1]), int(found[2])))


MEASUREMENT: Final = Measurement("places", "the place in Xid 13 of clients on SMs of their own", measure)
