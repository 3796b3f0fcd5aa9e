"""A guard's lane, models in a store, and a pool with warm workers on that lane."""

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from mpsguard.images.image import Image
from mpsguard.images.store import ImageStore
from mpsguard.pool.connection import PoolConnection
from mpsguard.pool.errors import PoolError
from mpsguard.pool.schedule import Phase
from tests.gpu.checkpoint.place import device
from tests.gpu.core.bench import Bench
from tests.gpu.core.client import Client, Clients
from tests.gpu.core.errors import SuiteError
from tests.gpu.core.guard import Guard
from tests.harness.guard_process import REPOSITORY

KIND, DEVICE, NOTES = "START_KIND", "START_DEVICE", "START_NOTES"
"""A worker's variables: the model, PyTorch's device, a file to which a line is written for each preparation."""
STORE, IMAGE = "START_STORE", "START_IMAGE"
"""And the image that a worker prepares itself for: its addresses."""
MIB: Final = 1 << 20
PREPARED: Final = 180.0
"""Seconds: PyTorch from a cold disk, for several processes at once."""
_SLICE: Final = 0.1
WITHIN: Final = 120.0


class Made(NamedTuple):
    """Models of one kind."""

    directory: Path
    names: tuple[str, ...]
    answers: Mapping[str, list[float]]
    size: int
    """Bytes of one."""

    def file(self, name: str) -> Path:
        """The safetensors file of a model."""
        return self.directory / "files" / f"{name}.safetensors"


class Start(NamedTuple):
    """One start by a worker; seconds."""

    seconds: float
    """From the request to the first answer, as the program sees it."""
    told: Mapping[str, Any]
    """What the worker says of it."""
    connection: socket.socket


def program(bench: Bench, clients: Clients, guard: Guard, name: str, words: Sequence[object]) -> Client:
    """One of this suite's programs, as a client of the guard's lane."""
    argv = [sys.executable, "-m", f"tests.gpu.start.{name}", "--device", device(bench), *map(str, words)]
    return clients.start(argv, guard.pipe_directory, name, _variables(bench))


@contextmanager
def models(
    bench: Bench, clients: Clients, guard: Guard, directory: Path, *, kind: str, count: int = 1
) -> Iterator[Made]:
    """Models for a block; their files and images are removed afterwards."""
    words = ["--kind", kind, "--store", directory / "store", "--files", directory / "files", "--count", count]
    try:
        maker = program(bench, clients, guard, "making", words)
        outcome = maker.finish(300.0)
        if not outcome.ok:
            raise SuiteError(f"models: {outcome.describe()}")
        made = maker.all_seen("made")
        answers: dict[str, Any] = {str(each.members["model"]): each.members["answer"] for each in made}
        yield Made(directory, tuple(answers), answers, round(made[0].number("size")))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Pool:
    """A pool with workers, as one program sees it."""

    def __init__(self, made: Made, path: Path, notes: Path) -> None:
        self.made = made
        self.path = path
        self._notes = notes
        self.store = ImageStore(made.directory / "store")

    def connect(self) -> PoolConnection:
        """Connect to it."""
        return PoolConnection(self.path, deadline=WITHIN)

    def phases(self) -> list[Phase]:
        """What its workers do."""
        with self.connect() as pool:
            return [worker.phase for worker in pool.listing().workers]

    def wait(self, count: int, timeout: float = PREPARED) -> None:
        """Return when so many workers wait; SuiteError after ``timeout`` seconds."""
        end = time.monotonic() + timeout
        while self.phases().count(Phase.WAITING) < count:
            if time.monotonic() > end:
                raise SuiteError(f"no {count} workers wait within {timeout:g} s: {self.phases()}")
            time.sleep(_SLICE)

    def start(self, name: str, how: str, **more: object) -> Start:
        """Start a model by a worker, and have its first answer; SuiteError if there is none."""
        with self.connect() as pool, self.store.open(name) as image:
            return self._start(pool, image, json.dumps({"how": how, **more}).encode())

    def _start(self, pool: PoolConnection, image: Image, payload: bytes) -> Start:
        began = time.perf_counter()
        try:
            connection = pool.start(self.store, image, payload, within=WITHIN, in_host=False)
        except PoolError as error:
            raise SuiteError(f"start of {image.name}: {error}") from None
        try:
            connection.settimeout(WITHIN)
            with connection.makefile("rb") as file:
                line = file.readline()
            seconds = time.perf_counter() - began
            return Start(seconds, json.loads(line), connection)
        except (OSError, ValueError) as error:
            connection.close()
            raise SuiteError(f"start of {image.name}: no answer: {error}") from None

    def right(self, name: str, start: Start) -> bool:
        """Whether a start's answer is the model's."""
        return same(start.told["answer"], self.made.answers[name])

    def notes(self) -> list[dict[str, float]]:
        """What workers have written about their preparation; seconds."""
        return [json.loads(line) for line in self._notes.read_text().splitlines()]


def drop(start: Start) -> None:
    """Have a worker give its memory back; it stays."""
    start.connection.sendall(b"d")
    start.connection.recv(1)


@contextmanager
def pool(
    bench: Bench, clients: Clients, guard: Guard, made: Made, kind: str, *, workers: int, gpu: int, pinned: int
) -> Iterator[Pool]:
    """A pool for a block, which starts without workers that wait; ``gpu`` and ``pinned`` are bytes."""
    path, notes = made.directory / "pool.sock", made.directory / "notes"
    notes.touch()
    argv = [sys.executable, "-m", "mpsguard.cli.guard", "pool", "--socket", str(path), "--host-memory", "64M"]
    argv += ["--pinned-memory", f"{-(-pinned // MIB) + 2}M", "--gpu-memory", f"{-(-gpu // MIB) + 2}M"]
    if workers:
        argv += ["--prepare", "tests.gpu.start.prepared:prepare"]
        argv += ["--minimum", str(workers), "--maximum", str(workers)]
    variables = {**_variables(bench), KIND: kind, DEVICE: device(bench), NOTES: str(notes)}
    variables |= {STORE: str(made.directory / "store"), IMAGE: made.names[0]}
    client = clients.start(argv, guard.pipe_directory, "pool", variables)
    found = Pool(made, path, notes)
    try:
        _await_socket(client, path)
        yield found
    finally:
        found.store.close()
        if client.ended_with() is None:
            os.kill(client.pid, signal.SIGTERM)
        client.finish(60.0)


def same(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two answers are the same: another process may choose other kernels, which round otherwise."""
    scale = max(map(abs, other), default=0.0)
    return len(one) == len(other) and all(abs(a - b) <= 0.02 * scale for a, b in zip(one, other, strict=True))


def _await_socket(client: Client, path: Path) -> None:
    end = time.monotonic() + 30.0
    while not path.exists():
        if client.ended_with() is not None or time.monotonic() > end:
            raise SuiteError(f"the pool does not serve: {client.finish(5.0).describe()}")
        time.sleep(_SLICE)


def _variables(bench: Bench) -> dict[str, str]:
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {"PYTHONPATH": path, "CUDA_DEVICE_MAX_CONNECTIONS": "2"}
    return {**variables, "OMP_NUM_THREADS": "1"} if bench.programs.simulated else variables
