"""The preload and the programs that run under it, built from this tree when a measurement first wants them."""

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from mpsguard.preload import library
from mpsguard.preload.build import PRELOAD, CompilerError, compile_library
from tests.bench.core.bench import Bench
from tests.bench.core.errors import SuiteError
from tests.bench.core.programs import CUDA, Work, compile_cuda

_NOTABLE: Final = ("plain_", "ordered", "ipc_", "deferred", "shed", "unlisted")
_SIMULATED_OVERRUN: Final = Path(__file__).resolve().parents[1] / "simulated_overrun.py"


def variables(bench: Bench, report: Path | None = None) -> Mapping[str, str]:
    """What switches it on, in its defaults; SuiteError if it cannot be built.

    Each program appends a line with its counters to ``report`` when it ends; `served` reads them.
    In the simulation there is nothing to preload: its programs look at MPSGUARD_ZONES alone.
    """
    if bench.programs.simulated:
        return {"MPSGUARD_ZONES": "on"}
    target = bench.root / library.NAME
    if not target.exists():
        try:
            compile_library(PRELOAD, target)
        except CompilerError as error:
            raise SuiteError(f"the preload cannot be built: {error}") from None
    return library.environment(library.PreloadSettings(report=report), {}, library=target)


class Served(NamedTuple):
    """What became of one process's allocations."""

    placed: int
    plain: int
    """Those it left to the driver, for whatever reason."""
    notable: Mapping[str, int]
    """The counters behind that, and those of stream order and of what was refused or put off, where they are not 0."""

    def describe(self) -> str:
        """In a few words."""
        why = ", ".join(f"{name} {count}" for name, count in self.notable.items())
        return f"{self.placed}/{self.plain}" + (f" ({why})" if why else "")


def served(report: Path) -> list[Served]:
    """Of each process that has ended, in the order of their ends; SuiteError if the report cannot be read."""
    try:
        counters = [json.loads(line) for line in report.read_text().splitlines()]
        return [
            Served(
                each["placed"] + each["placed_small"],
                sum(value for name, value in each.items() if name.startswith("plain_")),
                {name: each[name] for name in each if each[name] and name.startswith(_NOTABLE)},
            )
            for each in counters
        ]
    except (OSError, ValueError, KeyError) as error:
        raise SuiteError(f"the preload did not report: {error}") from None


def overrun(bench: Bench, arguments: tuple[str, ...]) -> list[str]:
    """The command line of `zone_overrun.cu`."""
    if bench.programs.simulated:
        return [sys.executable, str(_SIMULATED_OVERRUN), *arguments]
    return [str(program(bench, "zone_overrun")), *arguments]


def program(bench: Bench, name: str) -> Path:
    """One of `fault_injection/cuda`, compiled."""
    binary = bench.root / name
    return binary if binary.exists() else compile_cuda(name, bench.root)


def torch_loops(bench: Bench, kinds: Sequence[str], work: Work) -> list[str]:
    """The command line of `torch_loops.py`, on the same CPU each time; there is nothing of PyTorch to simulate.

    One CPU and not two: a training step goes from the program's thread to autograd's and back, and on a virtual machine
    it takes long, and never the same time, to wake a thread on another CPU.
    """
    if bench.programs.simulated:
        return bench.programs.worker(work)
    allowed = sorted(os.sched_getaffinity(0))
    # In the middle: the first ones serve interrupts.
    core = str(allowed[len(allowed) // 2])
    # The length of a kernel is PyTorch's own affair.
    arguments = replace(work, work=None).arguments()
    return [sys.executable, str(CUDA / "torch_loops.py"), *kinds, *arguments, "--cores", core]


def python_program(script: str, *arguments: str) -> list[str]:
    """The command line of one of the Python programs of `fault_injection/cuda`."""
    return [sys.executable, str(CUDA / script), *arguments]


def no_torch(bench: Bench) -> str:
    """Why PyTorch cannot be had here; empty if it can."""
    if bench.programs.simulated or importlib.util.find_spec("torch") is not None:
        return ""
    return f"{sys.executable} has no torch"
