"""Workers that are forked from a process with their imports: real processes, killed at each point."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.schedule import Phase
from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.pool.running import refused, running
from tests.integration.pool.test_workers import SIZE, WarmPool, asked, greeting, lives
from tests.unit.images.store.samples import some_bytes

IMPORTED = "tests.integration.pool.imported"
KILLS = 100


@contextmanager
def forking(directory: Path, monkeypatch: pytest.MonkeyPatch, *options: str, before: str = "") -> Iterator[WarmPool]:
    """A pool with a template; ``before``: what its import is told by a file."""
    deaths = directory / "deaths"
    deaths.mkdir()
    if before:
        (deaths / before).touch()
    monkeypatch.setenv("POOL_TEST", str(deaths))
    prepared = ("--prepare", "tests.integration.pool.prepared:prepare", "--import", IMPORTED)
    with running(directory, "--host-memory", "16M", *prepared, *options) as pool:
        pool.make("a", SIZE)
        yield WarmPool(pool, deaths)


def importers(directory: Path) -> list[int]:
    return sorted(int(path.name.split()[-1]) for path in (directory / "deaths").glob("imported by *"))


def test_workers_have_the_imports_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with forking(tmp_path, monkeypatch, "--minimum", "2", "--maximum", "4") as pool:
        served = [pool.start(), pool.start(), pool.start()]
        pids = [greeting(each)[0] for each in served]
        assert len(set(pids)) == 3
        (template,) = importers(tmp_path)
        assert {psutil.Process(pid).ppid() for pid in pids} == {template}
        # Each leads a group of its own, so that a signal to the pool's does not reach it.
        assert {os.getpgid(pid) for pid in pids} == set(pids)
        assert asked(served[0], "r0 mine") == b"mine" + some_bytes(("a", 0), SIZE)[4:16]
        assert asked(served[1], "r0") == some_bytes(("a", 0), SIZE)[:16]
        for each in served:
            each.close()
        wait_for("their ends", lambda: not any(lives(pid) for pid in pids))
    wait_for("the template's end", lambda: not lives(template))


def test_a_killed_worker_is_replaced_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with forking(tmp_path, monkeypatch, "--maximum", "2") as pool:
        for step in ("prepare", "start", "mapped"):
            pool.dies(step)
        with pool.start() as connection:
            assert greeting(connection)[1] == "hello"
        (template,) = importers(tmp_path)
        # No zombie stays: the template waits for those that the pool has done with.
        waiting = pool.waiting()
        wait_for("the others' ends", lambda: [each.pid for each in psutil.Process(template).children()] == [waiting])


def test_a_killed_template_ends_no_worker_and_comes_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with forking(tmp_path, monkeypatch, "--maximum", "2") as pool, pool.start() as connection:
        pid, _ = greeting(connection)
        waits = pool.waiting()
        (template,) = importers(tmp_path)
        os.kill(template, signal.SIGKILL)
        wait_for("its end", lambda: not lives(template))
        assert asked(connection, "r0") == some_bytes(("a", 0), SIZE)[:16]
        with pool.start() as other:
            assert greeting(other)[0] == waits
        wait_for("another template", lambda: len(importers(tmp_path)) == 2)
        assert psutil.Process(pool.waiting()).ppid() in set(importers(tmp_path)) - {template}
        connection.close()
        wait_for("the end of an orphan", lambda: not lives(pid))


def test_a_template_that_dies_in_its_imports_comes_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with forking(tmp_path, monkeypatch, before="import-dies") as pool:
        with pool.start() as connection:
            assert greeting(connection)[1] == "hello"
        assert len(importers(tmp_path)) == 2


def test_the_workers_of_a_template_that_died_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for name, before in (("lives", ""), ("dies", "import-dies")):
        (tmp_path / name).mkdir()
        with forking(tmp_path / name, monkeypatch, before=before) as pool:
            pool.waiting()
            assert pool.pool.process is not None
            process, path = psutil.Process(pool.pool.process.pid), str(pool.pool.path)

            def is_alone(process: psutil.Process = process, path: str = path) -> bool:
                # The socket that listens, and none of a program.
                return sum(str(each.laddr) == path for each in process.net_connections("unix")) == 1

            wait_for("the end of the programs' connections", is_alone)
            counts.append(process.num_fds())
    assert counts[0] == counts[1]


def test_the_end_of_a_pool_waits_for_no_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with forking(tmp_path, monkeypatch, before="import-hangs") as pool:
        with pytest.raises(PoolError, match="not there within"):
            pool.start(within=0.1)
        (template,) = wait_for("the import", lambda: importers(tmp_path))
        assert pool.phases() == []
    assert not lives(template)


def test_a_killed_pool_leaves_neither_template_nor_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with forking(tmp_path, monkeypatch) as pool:
        connection = pool.start()
        pid, _ = greeting(connection)
        waits = pool.waiting()
        (template,) = importers(tmp_path)
        assert pool.pool.process is not None
        pool.pool.process.kill()
        pool.pool.process.communicate()
        with connection:
            assert connection.recv(100) == b""
        wait_for("their ends", lambda: not any(lives(each) for each in (pid, waits, template)))
        pool.pool.start("--host-memory", "1M")


def test_an_import_that_does_not_end_ends_with_a_killed_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with forking(tmp_path, monkeypatch, before="import-hangs") as pool:
        (template,) = wait_for("the import", lambda: importers(tmp_path))
        assert pool.pool.process is not None
        pool.pool.process.kill()
        pool.pool.process.wait(PATIENCE)
        wait_for("its end", lambda: not lives(template))
        pool.pool.process.communicate()
        pool.pool.start("--host-memory", "1M")


@pytest.mark.slow(seconds=13, reason="a worker has 10 s to end in")
def test_a_worker_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with forking(tmp_path, monkeypatch, "--maximum", "1") as pool:
        served = pool.waiting()
        with pool.start(b"linger") as connection:
            assert connection.recv(100) == b""
        wait_for("the end's beginning", lambda: (served, Phase.ENDING) in pool.phases())
        with pool.start() as connection:
            assert greeting(connection)[0] != served
        assert not lives(served)


@pytest.mark.slow(seconds=8, reason="kills at random moments")
def test_kills_at_random_moments_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = random.Random(7)
    with forking(tmp_path, monkeypatch, "--minimum", "2", "--maximum", "5") as pool, ThreadPoolExecutor() as programs:
        assert pool.pool.process is not None
        process, path = psutil.Process(pool.pool.process.pid), str(pool.pool.path)
        pool.pool.workers_die = True

        def is_alone() -> bool:
            # The socket that listens, and none of a program.
            return sum(str(each.laddr) == path for each in process.net_connections("unix")) == 1

        def started() -> list[int]:
            return [pid for pid in psutil.pids() if pid != process.pid and _is_of(pid, tmp_path / "deaths")]

        def is_settled() -> bool:
            # Two that wait, and the template.
            return [phase for _, phase in pool.phases()] == [Phase.WAITING] * 2 and len(started()) == 3

        with pool.start() as connection:
            # The image stays in host memory from now on.
            assert greeting(connection)[1] == "hello"
        wait_for("the beginning", is_settled)
        wait_for("the end of the programs' connections", is_alone)
        descriptors = process.num_fds()
        over = threading.Event()
        served = [programs.submit(_starts, pool, over) for _ in range(3)]
        for _ in range(KILLS):
            over.wait(moments.uniform(0.0, 0.1))
            below = process.children(recursive=True)
            if below:
                with suppress(psutil.Error):
                    moments.choice(below).kill()
        over.set()
        assert sum(each.result() for each in served) > 0
        with pool.start() as connection:
            assert greeting(connection)[1] == "hello"
        wait_for("the end of what came in between", is_settled)
        wait_for("the end of the programs' connections", is_alone)
        assert process.num_fds() == descriptors
        assert not any(each.status() == psutil.STATUS_ZOMBIE for each in process.children(recursive=True))
    wait_for("their ends", lambda: not started())


def _is_of(pid: int, deaths: Path) -> bool:
    """Return whether a process was started for the pool with this folder."""
    with suppress(OSError):
        return f"POOL_TEST={deaths}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _starts(pool: WarmPool, over: threading.Event) -> int:
    """Start until it is over; return how many times a worker has answered. Each start is answered or refused."""
    count = 0
    while not over.is_set():
        try:
            connection = pool.start()
        except PoolError as error:
            if "ended while they started it" not in str(error):
                raise
            continue
        with connection, suppress(ConnectionError):
            # Nothing of one that was killed meanwhile.
            count += connection.recv(100).endswith(b"hello\n")
    return count


@pytest.mark.parametrize(
    ("before", "module", "said"),
    [
        ("", "tests.nosuch", "--import tests.nosuch: no module tests.nosuch"),
        ("import-threads", IMPORTED, f"--import {IMPORTED}: it starts threads"),
    ],
)
def test_what_cannot_be_imported_for_a_fork_is_one_line(tmp_path: Path, before: str, module: str, said: str) -> None:
    if before:
        (tmp_path / before).touch()
    assert said in refused("template", "a:b", module, POOL_TEST=str(tmp_path))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--import", "torch"), "--import is for workers: give --prepare"),
        (("--minimum", "2"), "--minimum is for workers: give --prepare"),
        (("--maximum", "2"), "--maximum is for workers: give --prepare"),
        (("--idle", "2"), "--idle is for workers: give --prepare"),
        (("--prepare", "a:b", "--import", "a-b"), "'a-b' is not the name of a module"),
    ],
)
def test_an_option_of_workers_that_makes_no_sense_is_a_mistake_of_usage(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    command = [sys.executable, "-m", "mpsguard.cli.guard", "pool", "--socket", str(tmp_path / "pool.sock")]
    ended = subprocess.run(
        [*command, "--host-memory", "1M", *options],
        check=False,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=PATIENCE,
    )
    assert ended.returncode == 2
    assert said in ended.stderr


def test_a_template_takes_no_module_from_a_directory_of_others(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'executed')!r}).touch()\n")
    tmp_path.chmod(0o777)
    assert "not in Python's path" in refused("template", "a:b", "planted", cwd=tmp_path)
    assert not (tmp_path / "executed").exists()
