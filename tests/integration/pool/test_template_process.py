"""A template and its workers without a pool's process around them: what a stalled one, or the end of one, leaves."""

import asyncio
import ctypes
import fcntl
import os
import re
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from mpsguard.images.pool.metrics import PoolMetrics
from mpsguard.images.pool.schedule import Phase, PoolPolicy
from mpsguard.images.pool.template_messages import ReapWorker, encode
from mpsguard.images.pool.template_process import ForkedProcess, TemplateProcess
from mpsguard.images.pool.worker_messages import WorkerPrepared
from mpsguard.images.pool.worker_pool import WorkerPool
from mpsguard.images.pool.worker_process import WorkerProcess
from mpsguard.linux.processes import procfs
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.pool.test_template import IMPORTED
from tests.integration.pool.test_workers import lives

SET_CHILD_SUBREAPER = 36
"""include/uapi/linux/prctl.h"""
PREPARE = "tests.integration.pool.prepared:prepare"


@contextmanager
def started(directory: Path, monkeypatch: pytest.MonkeyPatch, before: str = "") -> Iterator[TemplateProcess]:
    """A template; ``before``: what its import is told by a file."""
    monkeypatch.setenv("POOL_TEST", str(directory))
    if before:
        (directory / before).touch()
    found = TemplateProcess(PREPARE, [IMPORTED], directory / "pool.sock")
    found.channel.socket.settimeout(PATIENCE)
    yield found
    if found.lives:
        ended(found)
        found.reap()


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TemplateProcess]:
    with started(tmp_path, monkeypatch) as found:
        yield found


def ended(template: TemplateProcess) -> None:
    template.process.kill()
    wait_for("the template's end", lambda: not template.lives)


def forked(template: TemplateProcess, number: int) -> tuple[WorkerProcess, ForkedProcess]:
    """A worker that has prepared itself."""
    worker = WorkerProcess.forked(template, number)
    message = template.channel.receive()
    assert message is not None
    process = ForkedProcess(template, number, message.pid)
    worker.come(process)
    worker.channel.socket.settimeout(PATIENCE)
    assert worker.channel.receive() == WorkerPrepared()
    return worker, process


def outlived(template: TemplateProcess) -> None:
    ended(template)
    template.reap()


def has_ended(process: ForkedProcess) -> bool:
    return bool(select.select([process.pidfd], [], [], 0)[0])


def test_a_template_that_has_ended_keeps_no_pid(template: TemplateProcess) -> None:
    number = template.process.pidfd
    ended(template)
    template.reap()
    # Another descriptor, of which nothing is to be read, gets its number.
    pipe = os.pipe()
    copy = fcntl.fcntl(pipe[0], fcntl.F_DUPFD, number)
    try:
        assert number in {*pipe, copy}
        assert not template.lives
    finally:
        for fd in (*pipe, copy):
            os.close(fd)


async def waiting_in(pool: WorkerPool, other_than: int | None = None) -> int:
    """The pid of a worker that waits, once there is one."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for worker in pool.info():
                if worker.phase is Phase.WAITING and worker.pid != other_than:
                    return worker.pid
            await asyncio.sleep(0.01)


@pytest.mark.slow(seconds=4, reason="a preparation has 3 s")
def test_a_template_that_stalls_after_a_fork_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOL_TEST", str(tmp_path))

    async def stall() -> None:
        policy = PoolPolicy(minimum=1, maximum=1, preparation=3.0)
        pool = WorkerPool(PREPARE, policy, tmp_path / "pool.sock", PoolMetrics(), [IMPORTED])
        pool.open()
        try:
            first = await waiting_in(pool)
            (template,) = (int(path.name.split()[-1]) for path in tmp_path.glob("imported by *"))
            os.kill(template, signal.SIGSTOP)
            os.kill(first, signal.SIGKILL)
            await waiting_in(pool, first)
        finally:
            assert await pool.close() == ()

    asyncio.run(stall())


def test_a_worker_that_the_pool_could_not_take_does_not_begin(tmp_path: Path, template: TemplateProcess) -> None:
    (tmp_path / "prepare-0").touch()
    worker = WorkerProcess.forked(template, 0)
    message = template.channel.receive()
    assert message is not None
    worker.reap()
    template.reap_worker(0)
    wait_for("its end", lambda: not lives(message.pid))
    # It would have taken the file.
    assert (tmp_path / "prepare-0").exists()
    assert template.lives


def test_what_an_import_prints_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with started(tmp_path, monkeypatch, "import-prints") as template:
        for number in range(2):
            worker, process = forked(template, number)
            worker.end()
            wait_for("its end", partial(has_ended, process))
            worker.reap()
    assert sorted(capfd.readouterr().out.splitlines()) == ["from C", "from Python"]


@pytest.mark.parametrize("before", ["import-closes-stdout", "import-breaks-stdout"])
def test_a_template_forks_without_a_place_to_print_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    with started(tmp_path, monkeypatch, before) as template:
        forked(template, 0)[0].reap()


def test_a_template_keeps_its_workers_pids_whatever_its_imports_do_with_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(tmp_path, monkeypatch, "import-ignores-children") as template:
        worker, process = forked(template, 0)
        worker.kill()
        wait_for("its end", lambda: has_ended(process))
        assert procfs.state(process.pid) == "Z"
        worker.reap()
        wait_for("the template's wait", lambda: not lives(process.pid))
        forked(template, 1)[0].reap()


def test_what_a_worker_leaves_ends_with_it_also_without_its_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2]) < (6, 9):
        pytest.skip("the kernel signals no process group by a pidfd before Linux 6.9")
    (tmp_path / "leave-0").touch()
    with started(tmp_path, monkeypatch) as template:
        worker, process = forked(template, 0)
        (left,) = psutil.Process(process.pid).children()
        outlived(template)
    worker.kill()
    wait_for("its end", lambda: has_ended(process))
    worker.reap()
    wait_for("the end of what it left", lambda: not lives(left.pid))


@pytest.fixture
def adopting() -> Iterator[None]:
    """This process adopts orphans, as the first one of a container does."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    assert libc.prctl(SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


@pytest.mark.usefixtures("adopting")
def test_a_pool_that_adopts_a_worker_waits_for_it(template: TemplateProcess) -> None:
    worker, process = forked(template, 0)
    outlived(template)
    worker.kill()
    wait_for("its end", lambda: has_ended(process))
    assert procfs.parent(process.pid) == os.getpid()
    worker.reap()
    assert not lives(process.pid)


def test_a_template_that_stalls_waits_later_for_what_has_ended(template: TemplateProcess) -> None:
    worker, process = forked(template, 0)
    worker.kill()
    wait_for("its end", lambda: has_ended(process))
    template.channel.socket.setblocking(False)
    os.kill(template.process.pid, signal.SIGSTOP)
    with suppress(BlockingIOError):
        while True:
            template.channel.send(encode(ReapWorker(1000)))
    worker.reap()
    os.kill(template.process.pid, signal.SIGCONT)
    template.channel.socket.settimeout(PATIENCE)
    forked(template, 1)[0].reap()
    wait_for("the template's wait", lambda: not lives(process.pid))
