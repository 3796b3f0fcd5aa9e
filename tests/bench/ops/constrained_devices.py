"""Which GPU a job computes on that may use one of two, as Slurm's ConstrainDevices or a container lets it.

Its CUDA_VISIBLE_DEVICES is 0, for it sees one device; the lane's server sees both. The other GPU's node is refused. A
domain of both GPUs, one of the job's GPU alone, and stock MPS are tried with a job on each GPU.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.finding import Finding, all_of, not_measured
from tests.bench.core.gpus import minors, uuids
from tests.bench.core.guard import Options
from tests.harness.guard_process import REPOSITORY

_NAME: Final = "device 0 of a job that may use one GPU of two"
_WITHIN: Final = 60.0
"""Seconds for one program."""


def measure(bench: Bench) -> Iterator[Finding]:
    """Each way with each GPU."""
    cards = uuids()
    if len(cards) < 2:
        yield not_measured(_NAME, "one GPU")
        return
    nodes = {card: f"/dev/nvidia{minor}" for card, minor in minors().items()}
    pair = tuple(cards[:2])
    for what, which in {"stock MPS": "stock", "a domain of both": "both", "a domain of its own": "own"}.items():
        told = []
        for card in pair:
            others = [nodes[each] for each in cards if each != card]
            with _target(bench, which, card, pair) as target:
                seen = _seen(target.pipe_directory, others)
            told.append((seen.get("uuid") == card, f"{nodes[card]} its own: {_words(seen, nodes)}"))
        yield all_of(
            f"{_NAME}, {what}: its own",
            sum(right for right, _ in told),
            len(told),
            "jobs",
            note="; ".join(note for _, note in told),
        )


def _target(bench: Bench, which: str, card: str, pair: tuple[str, ...]) -> AbstractContextManager[Target]:
    if which == "stock":
        return bench.stock()
    return bench.guard(options=Options(gpus=pair if which == "both" else (card,)))


def _seen(pipe_directory: Path, hidden: list[str]) -> dict[str, object]:
    """What the program says of its device 0, or an error."""
    program = [sys.executable, str(Path(__file__).with_name("seen_device.py")), *hidden]
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe_directory), "CUDA_VISIBLE_DEVICES": "0"}
    try:
        done = subprocess.run(
            ["unshare", "--mount", *program],
            env=environment,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=_WITHIN,
            check=True,
        )
        told: dict[str, object] = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        return {"error": str(error.stderr)[-200:]}
    except (subprocess.TimeoutExpired, ValueError) as error:
        return {"error": str(error)[:200]}
    return told


def _words(seen: dict[str, object], nodes: dict[str, str]) -> str:
    return str(seen.get("error") or f"computed on {nodes.get(str(seen['uuid']), seen['uuid'])}")


MEASUREMENT: Final = Measurement("constrained_devices", "which GPU a job has that may use one of two", measure)
