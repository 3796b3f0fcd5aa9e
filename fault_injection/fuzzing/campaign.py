"""Runs cases in worker processes, under the eyes of one that sees when a case crashes its process, or does not end."""

import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from fault_injection.fuzzing.surface import BrokenPromiseError, Surface

_CHUNK: Final = 20_000
"""Cases of a worker process: it takes some 10 ms to start one, and what a case leaves behind ends with it."""
_MEMORY: Final = 1 << 30
"""Bytes that a worker may allocate: the largest input is a mebibyte, so one that takes more has found a way."""
_END_WITHIN: Final = 10.0
"""Seconds for a worker to give everything back when it is told to end."""
_LOOK: Final = 0.25
"""Seconds between two looks at the workers."""
_SHOWN: Final = 400
"""Characters of a case that are shown."""


class Failure(msgspec.Struct, frozen=True):
    """A case that went wrong."""

    surface: str
    number: int
    """-1: what was found after many cases, and cannot be said of one."""
    what: str
    hang: bool = False


class Chunk(msgspec.Struct, frozen=True):
    """Cases of one surface, from ``first`` up to ``end``."""

    surface: str
    first: int
    end: int


class Done(msgspec.Struct, frozen=True):
    """What came of a chunk, or of a part of it."""

    surface: str
    cases: int
    seconds: float
    slowest: float
    """Seconds of processor time of the case that took longest."""


class Row(msgspec.Struct):
    """What came of a surface."""

    cases: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    crashes: int = 0
    hangs: int = 0


def case(surface: Surface[Any], seed: int, number: int) -> Any:
    """The case of that number; the same in every run."""
    return surface.make(Random(f"{seed}:{surface.name}:{number}"))


def chunks(surfaces: Mapping[str, type[Surface[Any]]], cases: int) -> list[Chunk]:
    """So many cases, shared out among the surfaces; the quick ones of each come in turns."""
    total = sum(each.share for each in surfaces.values())
    counts = {name: cases * each.share // total for name, each in surfaces.items()}
    first = next(iter(counts))
    counts[first] += cases - sum(counts.values())
    found = [
        (begin / max(count, 1), Chunk(name, begin, min(begin + _CHUNK, count)))
        for name, count in counts.items()
        for begin in range(0, count, _CHUNK)
    ]
    return [chunk for _, chunk in sorted(found, key=lambda each: each[0])]


def run(
    surfaces: Mapping[str, type[Surface[Any]]], seed: int, work: Iterable[Chunk], jobs: int
) -> Iterator[Failure | Done]:
    """What comes of each case that fails, and of each chunk, as it comes."""
    left = deque(work)
    workers: list[_Worker] = []
    try:
        while left or workers:
            while left and len(workers) < jobs:
                chunk = left.popleft()
                workers.append(_Worker(surfaces[chunk.surface], seed, chunk))
            connection.wait([each.results for each in workers], _LOOK)
            for worker in list(workers):
                yield from worker.told()
                rest = worker.over()
                if rest is None:
                    continue
                workers.remove(worker)
                yield from rest[0]
                if rest[1] is not None:
                    left.appendleft(rest[1])
    finally:
        for worker in workers:
            worker.kill()


class _Worker:
    """Owns a process that runs a chunk."""

    def __init__(self, make: type[Surface[Any]], seed: int, chunk: Chunk) -> None:
        context = multiprocessing.get_context("fork")
        self._chunk = chunk
        self._patience = make.patience
        # The case that is being run; written with one store, and read by us at any time.
        self._at = context.RawValue("q", chunk.first)
        self._seen = chunk.first
        self._since = self._began = time.monotonic()
        self.results, theirs = context.Pipe(duplex=False)
        self._process: ForkProcess = context.Process(
            target=_work, args=(make, seed, chunk, self._at, theirs), daemon=False
        )
        self._process.start()
        theirs.close()
        self._finished = False

    def told(self) -> Iterator[Failure | Done]:
        """What the worker has said meanwhile."""
        try:
            while self.results.poll():
                said: Failure | Done = self.results.recv()
                self._finished |= isinstance(said, Done)
                yield said
        except EOFError:
            return

    def over(self) -> tuple[list[Failure | Done], Chunk | None] | None:
        """None while it works; else what is to be said of its end, and what it has not done."""
        now, at = time.monotonic(), self._at.value
        if at != self._seen:
            self._seen, self._since = at, now
        if self._process.is_alive():
            if now - self._since < self._patience:
                return None
            self.kill()
            return self._cut_short(f"did not end within {self._patience:g} s", hang=True)
        late = list(self.told())
        self.kill()
        if self._finished:
            return late, None
        failures, rest = self._cut_short(f"the process ended: {self._process.exitcode}", hang=False)
        return [*late, *failures], rest

    def kill(self) -> None:
        """End the process, and give everything back."""
        # First in order: it may have processes of its own.
        self._process.terminate()
        self._process.join(_END_WITHIN)
        self._process.kill()
        self._process.join()
        self.results.close()

    def _cut_short(self, why: str, *, hang: bool) -> tuple[list[Failure | Done], Chunk | None]:
        at, chunk = self._at.value, self._chunk
        failure = Failure(chunk.surface, at, why, hang=hang)
        done = Done(chunk.surface, at + 1 - chunk.first, time.monotonic() - self._began, 0.0)
        rest = Chunk(chunk.surface, at + 1, chunk.end) if at + 1 < chunk.end else None
        return [failure, done], rest


def _work(make: type[Surface[Any]], seed: int, chunk: Chunk, at: Any, out: Connection) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.monotonic()
    if make.bounded:
        _bound_memory()
    slowest, number = 0.0, chunk.first
    while number < chunk.end:
        # A case that was broken off may have left something behind: what follows begins anew.
        surface = make()
        try:
            number, slow = _feed(surface, seed, Chunk(chunk.surface, number, chunk.end), at, out)
            slowest = max(slowest, slow)
        finally:
            surface.close()
    out.send(Done(chunk.surface, chunk.end - chunk.first, time.monotonic() - began, slowest))


def _feed(surface: Surface[Any], seed: int, chunk: Chunk, at: Any, out: Connection) -> tuple[int, float]:
    """Run cases up to the first that fails; the number of the next, and the seconds of the slowest."""
    before, slowest = _descriptors(), 0.0
    for number in range(chunk.first, chunk.end):
        at.value = number
        started = time.thread_time()
        failure = one(surface, seed, number)
        slowest = max(slowest, time.thread_time() - started)
        if failure is not None:
            out.send(failure)
            return number + 1, slowest
    try:
        surface.check()
        if _descriptors() > before:
            raise BrokenPromiseError(f"{_descriptors() - before} more descriptors after {chunk}")
    except Exception as error:  # that is what is looked for
        out.send(Failure(surface.name, -1, _described(error)))
    return chunk.end, slowest


def one(surface: Surface[Any], seed: int, number: int) -> Failure | None:
    """Run one case."""
    made: Any = None
    try:
        made = case(surface, seed, number)
        surface.feed(made)
    except Exception as error:  # that is what is looked for
        shown = repr(made)
        more = f" ... {len(shown)} characters" if len(shown) > _SHOWN else ""
        return Failure(surface.name, number, f"{_described(error)}\n  {shown[:_SHOWN]}{more}")
    return None


def _described(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-4:]))
    return f"{type(error).__name__}: {str(error)[:_SHOWN]} ({where})"


def _bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bytes_now = pages * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (bytes_now + _MEMORY, resource.RLIM_INFINITY))


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
