"""One run of the copier in this process, with a real store and threads that all want the interpreter."""

import itertools
import os
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from blake3 import blake3

from mpsguard.images.checkpoints.piece_table import PieceTable
from mpsguard.images.checkpoints.pieces import PIECE, spans
from mpsguard.images.copier.run import STORE_MEANWHILE, CheckpointRun, RunMemory
from mpsguard.images.copier.sources import HostCopySource, host_buffers
from mpsguard.images.store.store import ImageStore
from mpsguard.linux.descriptors import memfd
from tests.harness.waiting import PATIENCE, wait_for

PIECES = 3
MANY = 33
"""Enough for all threads that drain, and one claim more than two buffers have."""
RUNS = 8
BUSY = 40
"""Threads that compute: one that wakes gets the interpreter after each of them had it for 5 ms, so after a tick."""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_run_ends_where_its_threads_wake_late(tmp_path: Path) -> None:
    """A thread that waits for a piece, and wakes after its time is up, must not wait for ever."""
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(10_000))

    busy = [threading.Thread(target=compute, daemon=True) for _ in range(BUSY)]
    with ExitStack() as undo:
        for thread in busy:
            thread.start()
        undo.callback(over.set)
        for number in range(RUNS):
            with ExitStack() as of_run:
                # In a store each, which has none of these pieces.
                run, _ = run_of(of_run, tmp_path / str(number), os.urandom(PIECES * PIECE))
                working = threading.Thread(target=run.work, daemon=True)
                working.start()
                working.join(PATIENCE)
                assert not working.is_alive()
                assert run.schedule.is_whole
    for thread in busy:
        thread.join(PATIENCE)


@pytest.mark.parametrize("started", [1, 3, 4])
def test_a_run_for_which_there_are_no_threads_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    """They would go on copying, into the buffers of the next run."""
    start = threading.Thread.start
    allowed = itertools.count(1)

    def limited(thread: threading.Thread) -> None:
        if next(allowed) > started:
            raise RuntimeError("can't start new thread")
        start(thread)

    before = set(threading.enumerate())
    with ExitStack() as undo:
        run, _ = run_of(undo, tmp_path, os.urandom(MANY * PIECE))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", limited)
            with pytest.raises(RuntimeError, match="new thread"):
                run.work()
        assert set(threading.enumerate()) <= before


def test_a_few_threads_store_while_there_are_buffers_to_drain_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would keep the interpreter from those that drain, for which the program waits."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    with ExitStack() as undo:
        run, gate = run_of(undo, tmp_path, os.urandom(MANY * PIECE), last=(MANY - 1) * PIECE)
        storing: set[str] = set()
        put = run._writer.put

        def noted(content: memoryview) -> str | None:
            storing.add(threading.current_thread().name)
            return put(content)

        monkeypatch.setattr(run._writer, "put", noted)
        working = threading.Thread(target=run.work)
        working.start()
        try:
            wait_for("all but the last claim to be stored", lambda: run.schedule.copied == MANY - 1)
            assert len(storing) <= STORE_MEANWHILE
        finally:
            gate.set()
            working.join(PATIENCE)
        assert run.schedule.is_whole


class Gated(HostCopySource):
    """The read at one place waits."""

    def __init__(self, fd: int, size: int, undo: ExitStack, last: int | None) -> None:
        super().__init__((fd,), (size,), undo)
        self._last = last
        self.gate = threading.Event()

    def read(self, offset: int, buffer: memoryview, stream: int) -> None:
        if offset == self._last:
            assert self.gate.wait(PATIENCE)
        super().read(offset, buffer, stream)


def run_of(
    undo: ExitStack, directory: Path, content: bytes, *, last: int | None = None
) -> tuple[CheckpointRun, threading.Event]:
    """A run over some content, with buffers for all of it; and what lets it read at ``last``."""
    fd = memfd.create("content", len(content), fixed=True)
    undo.callback(os.close, fd)
    os.pwrite(fd, content, 0)
    span = spans([("a", len(content))])[0]
    table, shared = PieceTable.create(span.end, 1)
    undo.callback(table.close)
    undo.callback(os.close, shared)
    for piece in range(span.end):
        table.digests[piece * 32 : (piece + 1) * 32] = blake3(content[piece * PIECE : (piece + 1) * PIECE]).digest()
    source = Gated(fd, len(content), undo, last)
    memory = RunMemory([(span, source)], None, 0, host_buffers(2 * len(content), 32 << 20).each)
    store = undo.enter_context(ImageStore(directory / "store"))
    return CheckpointRun(table, memory, undo.enter_context(store.begin("one")), lambda: None), source.gate
