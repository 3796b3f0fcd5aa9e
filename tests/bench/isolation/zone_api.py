"""A program that makes its own zones (`mpsguard.preload.zones`) and accesses memory outside: tripwires, then sparse."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.finding import Finding
from tests.bench.core.programs import CUDA
from tests.bench.isolation.overrun import Study, Subject
from tests.bench.isolation.partial import kept, skipped
from tests.harness.guard_process import REPOSITORY

REPETITIONS: Final = 10
_PATH: Final = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))


def _command(kind: str, arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, str(CUDA / "zone_api.py"), "--kind", kind, *arguments]


TRIPWIRE: Final = Subject(
    "overrun of a program with tripwires of its own",
    lambda _bench, arguments: _command("tripwire", arguments),
    lambda _bench: {"PYTHONPATH": _PATH},
    beside_stock=False,
)
SPARSE: Final = replace(
    TRIPWIRE,
    name="overrun of a program with sparse zones of its own",
    command=lambda _bench, arguments: _command("sparse", arguments),
    told=False,
)


def measure(bench: Bench) -> Iterator[Finding]:
    """Both kinds."""
    if bench.programs.simulated:
        bench.say("zone_api: a simulated GPU has no zones")
        return
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        yield skipped("zones of a program's own", f"{sys.executable} has no cuda-bindings")
        return
    for subject in (TRIPWIRE, SPARSE):
        study = Study(bench, subject)
        study.guarded.wanted = bench.runs(REPETITIONS, 2)
        yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement("zone_api", "an access outside memory with zones of the program's own", measure)
