"""Snapshots of an unmodified PyTorch program under the preload, compared byte by byte; the driver's refusal."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Final

import msgspec

from mpsguard.images.snapshot import document
from mpsguard.images.snapshot.document import SnapshotDocument
from tests.bench.checkpoint.pattern import FACTOR
from tests.bench.checkpoint.place import finished, start, store_for
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, all_of, none_of, not_measured, sampled
from tests.bench.isolation import preloaded
from tests.bench.results.schema import Row
from tests.harness.guard_process import REPOSITORY

_PREPARED: Final = 240.0
_UNDISTURBED: Final = 5.0
"""Seconds between two snapshots, to compare the rate with."""
_TIME: Final = 180.0
_REFUSED: Final = 801
"""CUDA_ERROR_NOT_SUPPORTED."""
_WHAT: Final = "snapshot of an unmodified program"


def measure(bench: Bench) -> Iterator[Finding]:
    """Three snapshots of one program, which works on; one, if quick."""
    if bench.programs.simulated:
        bench.say("snapshot: a simulated GPU has no memory to copy")
        return
    if missing := preloaded.no_torch(bench):
        yield not_measured(_WHAT, missing)
        return
    size = 10**9 if bench.quick else 8 * 10**9
    store, size = store_for(bench, "snapshot", 3, size)
    report = bench.root / "snapshot-report"
    try:
        with bench.guard() as guard, Clients() as clients:
            words = ["--size", size]
            client = start(bench, clients, guard, "observed", words, more=preloaded.variables(bench, report))
            told = client.wait_for("contents", _PREPARED).members["tensors"]
            assert isinstance(told, list)
            taken = [_taken(client, store / str(number)) for number in range(bench.runs(3, 1))]
            time.sleep(_UNDISTURBED)
            yield from _compared(store, told, [directory for directory, _, _ in taken])
            refusal = _driver_checkpoint(client.pid, bench.root)
            client.stop()
            yield from finished(_WHAT, client, 60.0)
    finally:
        rmtree(store, ignore_errors=True)
    yield from _speed(client, taken)
    yield refusal


def _taken(client: Client, target: Path) -> tuple[Path, float, float]:
    """Take a snapshot; when it began and ended, in seconds of CLOCK_MONOTONIC."""
    time.sleep(_UNDISTURBED)
    began = time.monotonic()
    done = _run("mpsguard.cli.ctl", "--json", "snapshot", str(client.pid), "--output", str(target))
    if done.returncode != 0:
        raise SuiteError(f"mpsguard-ctl snapshot: status {done.returncode}; {done.stdout[-500:]} {done.stderr[-500:]}")
    return target, began, time.monotonic()


def _compared(store: Path, told: Sequence[Sequence[int]], directories: Sequence[Path]) -> Iterator[Finding]:
    wrong = total = missing = skipped = 0
    notes = []
    for directory in directories:
        found = msgspec.json.decode((directory / document.NAME).read_bytes(), type=SnapshotDocument)
        skipped += len(found.skipped)
        for address, elements, salt in told:
            different = _differing(directory, found, address, elements, salt)
            missing += different is None
            wrong += different or 0
            total += 4 * elements
        plain = [f"{each.what} {each.count}" for each in found.not_included if each.count is not None]
        notes.append(f"{len(found.allocations)} allocations; not included: {', '.join(plain) or 'nothing counted'}")
        rmtree(directory)
    yield none_of(
        f"{_WHAT}: bytes that differ from what it wrote", wrong, total, "bytes", runs=len(directories), note=notes[0]
    )
    yield all_of(
        f"{_WHAT}: tensors that are in it",
        len(told) * len(directories) - missing,
        len(told) * len(directories),
        "tensors",
    )
    yield none_of(f"{_WHAT}: allocations that were skipped", skipped, skipped + len(directories), "allocations")


def _differing(directory: Path, found: SnapshotDocument, address: int, elements: int, salt: int) -> int | None:
    """Return how many bytes of a tensor differ; None if no allocation has it."""
    import numpy as np  # noqa: PLC0415 - every worker imports this file

    size = 4 * elements
    for each in found.allocations:
        if each.address <= address and address + size <= each.address + each.size:
            content = np.load(directory / each.file, mmap_mode="r")
            at = address - each.address
            wanted = np.arange(elements, dtype=np.uint32) * np.uint32(FACTOR) + np.uint32(salt)
            return int(np.count_nonzero(content[at : at + size] != wanted.view(np.uint8)))
    return None


def _speed(client: Client, taken: Sequence[tuple[Path, float, float]]) -> Iterator[Finding]:
    if (told := client.seen("windows")) is None:
        yield not_measured(f"{_WHAT}: the program's rate meanwhile", "it did not tell")
        return
    windows = told.members["windows"]
    assert isinstance(windows, list)

    def rate(began: float, ended: float) -> float:
        inside = [(length, count) for at, length, count in windows if began <= at and at + length <= ended]
        work, time_taken = sum(count for _, count in inside), sum(length for length, _ in inside)
        return float(work / max(time_taken, 1e-9))

    alone = [rate(began - _UNDISTURBED, began) for _, began, _ in taken]
    during = [rate(began, ended) for _, began, ended in taken]
    longest = max(length for at, length, _ in windows if any(began <= at <= ended for _, began, ended in taken))
    yield sampled(
        f"{_WHAT}: its rate meanwhile, to that before",
        [ours / before for ours, before in zip(during, alone, strict=True)],
        unit="times",
        bar="reported",
        holds=True,
        note=f"{median(alone):.0f} steps/s before, {median(during):.0f} meanwhile; longest window of 20 ms: "
        f"{longest * 1e3:.1f} ms",
    )
    yield sampled(
        f"{_WHAT}: how long the command took",
        [ended - began for _, began, ended in taken],
        unit="s",
        bar="reported",
        holds=True,
    )


def _driver_checkpoint(pid: int, root: Path) -> Finding:
    nowhere = root / "no-mps"
    nowhere.mkdir(exist_ok=True)
    name = "the driver's own checkpoint of an MPS client: answer of cuCheckpointProcessLock"
    done = _run("tests.bench.checkpoint.driver_checkpoint", str(pid), CUDA_MPS_PIPE_DIRECTORY=str(nowhere))
    if done.returncode != 0:
        return not_measured(name, f"status {done.returncode}; {done.stderr[-300:]}")
    code, _, text = done.stdout.strip().partition(" ")
    row = Row(
        name=name, value=int(code), unit="CUresult", bar=f"{_REFUSED}: refused", holds=int(code) == _REFUSED, runs=1
    )
    return Finding(row, text)


def _run(module: str, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=_TIME,
        check=False,
    )


MEASUREMENT: Final = Measurement(
    "snapshot", "an unmodified program's memory, copied while it runs; the driver's refusal", measure
)
