"""Legacy CUDA IPC under the preload: two programs, both ways of mixing them, and torch.multiprocessing."""

import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import Outcome
from tests.bench.core.finding import Finding
from tests.bench.core.programs import CUDA
from tests.bench.isolation import preloaded, sameness
from tests.bench.isolation.partial import kept, skipped
from tests.bench.isolation.sameness import Compared, Program, Run, judged
from tests.bench.results.schema import Row

DEADLINE: Final = 45.0
"""Seconds for one of the two programs, which wait thirty for each other."""
AT_ONCE: Final = 10.0
"""Seconds within which a refusal is one: no program waits for an answer that does not come."""
TORCH: Final = Program("torch.multiprocessing with CUDA tensors", ("multiprocessing",), together=False)


@dataclass
class Study:
    """As clients of one guard."""

    bench: Bench
    pairs: dict[str, Run] = field(default_factory=dict)
    refusal: str = ""
    refused: bool = False
    compared: list[Compared] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def make(self) -> None:
        """One after the other."""
        ours = preloaded.variables(self.bench)
        with self.bench.guard() as guard:
            self.bench.warm_up(guard)
            for name, exporter, importer in (
                ("plain", {}, {}),
                ("both under the preload", ours, ours),
                ("the importer under the preload", {}, ours),
            ):
                outcomes = self._pair(guard, exporter, importer)
                self.pairs[name] = judged(outcomes) if outcomes else Run(failure="did not end")
                self.bench.say(f"IPC, {name}: {self.pairs[name]}")
            self._refuse(self._pair(guard, ours, {}))
            if missing := preloaded.no_torch(self.bench):
                self.skipped[TORCH.name] = missing
            else:
                self.compared.append(sameness.compare(self.bench, guard, TORCH))

    def rows(self) -> Iterator[Finding]:
        """What there is."""
        wanted = self.pairs.get("plain", Run())
        for name, run in self.pairs.items():
            same = bool(run.digests) and len(set(run.digests)) == 1 and run == wanted
            yield Finding(
                _row(f"CUDA IPC between two programs, {name}: same contents as plainly", holds=same), run.failure
            )
        if self.refusal:
            name = "CUDA IPC, the exporter alone under the preload: refused at once"
            yield Finding(_row(name, holds=self.refused), self.refusal)
        for each in self.compared:
            yield each.finding()
        for name, why in self.skipped.items():
            yield skipped(name, why)

    def _refuse(self, outcomes: list[Outcome]) -> None:
        result = outcomes[1].find("result") if len(outcomes) == 2 else None
        members = {} if result is None else result.members
        self.refusal = f"error {members.get('refused')} after {members.get('seconds')} s" if members else "did not end"
        seconds = members.get("seconds")
        self.refused = bool(members.get("refused")) and isinstance(seconds, float) and seconds < AT_ONCE

    def _pair(self, target: Target, exporter: Mapping[str, str], importer: Mapping[str, str]) -> list[Outcome]:
        """What became of both; nothing if one did not end."""
        meeting = str(self.bench.root / f"meeting-{uuid.uuid4().hex}")
        script = str(CUDA / "ipc_programs.py")
        with Clients() as clients:
            started = [
                clients.start([sys.executable, script, role, meeting], target.pipe_directory, f"IPC {role}", variables)
                for role, variables in (("export", exporter), ("import", importer))
            ]
            try:
                return [each.finish(DEADLINE) for each in started]
            except SuiteError as error:
                self.bench.say(f"IPC: {error}")
                return []


def _row(name: str, *, holds: bool) -> Row:
    return Row(name=name, value=int(holds), count=1, unit="runs", bar="1 of 1", holds=holds, runs=1)


def measure(bench: Bench) -> Iterator[Finding]:
    """All of it, and the rows of what was made."""
    if bench.programs.simulated:
        bench.say("ipc: a simulated GPU has no memory to share")
        return
    study = Study(bench)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement("ipc", "legacy CUDA IPC and torch.multiprocessing under the preload", measure)
