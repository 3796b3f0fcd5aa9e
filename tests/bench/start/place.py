"""A guard's lane, models in a store, and a pool with warm workers on that lane."""

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from mpsguard.images.pool.connection import PoolConnection
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.schedule import Phase
from mpsguard.images.store.image import Image
from mpsguard.images.store.store import ImageStore
from tests.bench.checkpoint.place import device
from tests.bench.core.bench import Bench
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.guard import Guard
from tests.harness.guard_process import REPOSITORY

KIND, DEVICE, NOTES = "START_KIND", "START_DEVICE", "START_NOTES"
"""A worker's variables: the model, PyTorch's device, a file to which a line is written for each preparation."""
STORE, IMAGE = "START_STORE", "START_IMAGE"
"""And the image that a worker prepares itself for: its addresses."""
PINS: Final = "START_PINS"
"""A file: as long as it exists, workers that prepare themselves pin the arena."""
MIB: Final = 1 << 20
PREPARED: Final = 180.0
"""Seconds: PyTorch from a cold disk, for several processes at once."""
_SLICE: Final = 0.1
WITHIN: Final = 120.0
_ENDS: Final = 20.0
"""Seconds for the ends of the pool, the guard and the clients, and for the result file."""


class Made(NamedTuple):
    """Models of one kind."""

    directory: Path
    names: tuple[str, ...]
    answers: Mapping[str, list[float]]
    size: int
    """Bytes of one."""
    rate: float
    """Of the bus: bytes a second from pinned memory to the GPU."""

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


def spare(bench: Bench) -> float:
    """Seconds that are left for measurements: what is there by then is written, and all has ended, in time."""
    return max(0.0, bench.left - _ENDS)


def patience(bench: Bench, most: float) -> float:
    """Seconds to wait for something, ``most`` or fewer."""
    return max(1.0, min(most, spare(bench)))


def told(seconds: Mapping[str, float]) -> str:
    """The steps of something, in words."""
    return ", ".join(f"{step} {each:.1f} s" for step, each in seconds.items())


def program(bench: Bench, clients: Clients, guard: Guard, name: str, words: Sequence[object]) -> Client:
    """One of this suite's programs, as a client of the guard's lane."""
    argv = [sys.executable, "-m", f"tests.bench.start.{name}", "--device", device(bench), *map(str, words)]
    return clients.start(argv, guard.pipe_directory, name, _variables(bench))


@contextmanager
def models(
    bench: Bench, clients: Clients, guard: Guard, directory: Path, *, kind: str, count: int = 1
) -> Iterator[Made]:
    """Models for a block; their files and images are removed afterwards."""
    words = ["--kind", kind, "--store", directory / "store", "--files", directory / "files", "--count", count]
    try:
        maker = program(bench, clients, guard, "making", words)
        began = time.monotonic()
        outcome = maker.finish(patience(bench, 300.0))
        if not outcome.ok:
            raise SuiteError(f"models: {outcome.describe()}")
        made = maker.all_seen("made")
        steps = told(cast("Mapping[str, float]", made[0].members["steps"]))
        bench.say(f"{kind}: made in {time.monotonic() - began:.1f} s; of them for the first one: {steps}")
        answers: dict[str, Any] = {str(each.members["model"]): each.members["answer"] for each in made}
        rate = maker.wait_for("rate").number("rate")
        yield Made(directory, tuple(answers), answers, round(made[0].number("size")), rate)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Pool:
    """A pool with workers, as one program sees it."""

    def __init__(self, made: Made, path: Path, notes: Path, pins: Path) -> None:
        self.made = made
        self.path = path
        self._notes = notes
        self._pins = pins
        self.store = ImageStore(made.directory / "store")

    def connect(self) -> PoolConnection:
        """Connect to it."""
        return PoolConnection(self.path, deadline=WITHIN)

    def bring(self, name: str, within: float) -> None:
        """Have a model in pinned memory, which makes the operating system find that memory; SuiteError if it fails."""
        try:
            with self.connect() as pool, self.store.open(name) as image:
                pool.hold_pinned(self.store, image, within=within)
        except PoolError as error:
            raise SuiteError(f"{name}: {error}") from None

    def let_workers_pin(self, wanted: bool) -> None:
        """Say whether workers that prepare themselves from now on pin the arena."""
        if wanted:
            self._pins.touch()
        else:
            self._pins.unlink(missing_ok=True)

    def phases(self) -> list[Phase]:
        """What its workers do."""
        with self.connect() as pool:
            return [worker.phase for worker in pool.listing().workers]

    def wait(self, count: int, timeout: float = PREPARED) -> None:
        """Return when so many workers wait; SuiteError after ``timeout`` seconds."""
        end = time.monotonic() + timeout
        while self.phases().count(Phase.WAITING) < count:
            if time.monotonic() > end:
                there = ", ".join(f"{number} {phase}" for phase, number in Counter(self.phases()).items())
                raise SuiteError(f"no {count} workers wait within {timeout:.0f} s: {there}")
            time.sleep(_SLICE)

    def start(self, name: str, how: str, **more: object) -> Start:
        """Start a model by a worker, and have its first answer; SuiteError if there is none."""
        with self.connect() as pool, self.store.open(name) as image:
            # On demand the worker says later when all was there.
            lines = 2 if how == "demand" else 1
            return self._start(pool, image, json.dumps({"how": how, **more}).encode(), lines)

    def _start(self, pool: PoolConnection, image: Image, payload: bytes, lines: int) -> Start:
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
                told = json.loads(line)
                for _ in range(1, lines):
                    told |= json.loads(file.readline())
            return Start(seconds, told, connection)
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
    bench: Bench,
    clients: Clients,
    guard: Guard,
    made: Made,
    kind: str,
    *,
    workers: int,
    gpu: int,
    pinned: int,
    pins: bool = True,
) -> Iterator[Pool]:
    """A pool for a block, which starts without workers that wait.

    ``gpu`` and ``pinned`` are bytes; ``pins``: as `Pool.let_workers_pin`, for the first workers.
    """
    path, notes, mark = (made.directory / each for each in ("pool.sock", "notes", "pins"))
    notes.touch()
    found = Pool(made, path, notes, mark)
    found.let_workers_pin(pins)
    argv = [sys.executable, "-m", "mpsguard.cli.guard", "pool", "--socket", str(path), "--host-memory", "64M"]
    argv += ["--pinned-memory", f"{-(-pinned // MIB) + 2}M", "--gpu-memory", f"{-(-gpu // MIB) + 2}M"]
    if workers:
        argv += ["--prepare", "tests.bench.start.prepared:prepare", "--import", "tests.bench.start.imports"]
        argv += ["--minimum", str(workers), "--maximum", str(workers)]
    variables = {**_variables(bench), KIND: kind, DEVICE: device(bench), NOTES: str(notes)}
    variables |= {STORE: str(made.directory / "store"), IMAGE: made.names[0], PINS: str(mark)}
    client = clients.start(argv, guard.pipe_directory, "pool", variables)
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
