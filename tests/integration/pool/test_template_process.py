"""A template and its workers without a pool's process around them: what a stalled one, or the end of one, leaves."""

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.pool.metrics import PoolMetrics
from mpsguard.pool.schedule import Phase, PoolPolicy
from mpsguard.pool.template_process import TemplateProcess
from mpsguard.pool.worker_pool import WorkerPool
from mpsguard.pool.worker_process import WorkerProcess
from tests.integration.pool.running import DEADLINE
from tests.integration.pool.test_template import IMPORTED
from tests.integration.pool.test_workers import lives
from tests.integration.vault.running import wait_for

PREPARE = "tests.integration.pool.prepared:prepare"


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TemplateProcess]:
    monkeypatch.setenv("POOL_TEST", str(tmp_path))
    found = TemplateProcess(PREPARE, [IMPORTED], tmp_path / "pool.sock")
    yield found
    if found.lives:
        ended(found)
        found.reap()


def ended(template: TemplateProcess) -> None:
    template.process.kill()
    wait_for("the template's end", lambda: not template.lives)


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
    async with asyncio.timeout(DEADLINE):
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
    template.channel.socket.settimeout(DEADLINE)
    forked = template.channel.receive()
    assert forked is not None
    worker.reap()
    template.reap_worker(0)
    wait_for("its end", lambda: not lives(forked.pid))
    # It would have taken the file.
    assert (tmp_path / "prepare-0").exists()
    assert template.lives
