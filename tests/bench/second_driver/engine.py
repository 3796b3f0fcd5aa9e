"""vLLM, unmodified, at a neighbour's SM fault, idle and with requests in flight."""

import importlib.util
import sys
from collections.abc import Iterator
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.finding import Finding
from tests.bench.core.programs import CUDA
from tests.bench.isolation.partial import kept
from tests.bench.second_driver import compiled
from tests.bench.second_driver.compiled import Study, Subject
from tests.bench.second_driver.programs import Program, State

KINDS: Final = {"eager": "vLLM, eager", "graphs": "vLLM, decoding by graphs"}
"""The kinds of `vllm_engine.py`, by their names in the rows."""


def _lacking(bench: Bench) -> str:
    if bench.programs.simulated:
        return "a simulated GPU has no engine to run on it"
    return "" if importlib.util.find_spec("vllm") is not None else f"{sys.executable} has no vllm"


def _programs(_bench: Bench, state: State) -> list[Program]:
    program = str(CUDA / "vllm_engine.py")
    return [Program(name, (sys.executable, program, kind, state.value)) for kind, name in KINDS.items()]


VLLM: Final = Subject("engine", "vLLM", _programs, _lacking, start=240.0, go_on=120.0)


def measure(bench: Bench) -> Iterator[Finding]:
    """All of it, and the rows of what was made."""
    study = Study(bench, VLLM)
    yield from kept(study.make, study.rows)


MEASUREMENT: Final = Measurement("engine", f"vLLM unmodified at a neighbour's SM fault: {compiled.FAULT}", measure)
