"""Warm workers of a real pool: assigned once, replaced, started anew when they die, ended with the pool."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.image_memory import key_of
from mpsguard.images.pool.messages import StartImage, encode
from mpsguard.images.pool.schedule import MOST_TRIES, Phase
from mpsguard.images.pool.worker_process import WorkerProcess
from mpsguard.images.store.store import ImageStore
from mpsguard.linux.processes import procfs
from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.pool.running import DEATH, MIB, RunningPool, refused, running
from tests.unit.images.store.samples import some_bytes

SIZE = 2 * MIB + 5


class WarmPool:
    """A pool with workers and one image."""

    def __init__(self, pool: RunningPool, deaths: Path) -> None:
        self.pool = pool
        self._deaths = deaths

    def start(self, payload: bytes = b"hello", within: float = PATIENCE) -> socket.socket:
        with self.pool.connect() as connection, ImageStore(self.pool.store) as store, store.open("a") as image:
            found = connection.start(store, image, payload, within=within)
        found.settimeout(PATIENCE)
        return found

    def phases(self) -> list[tuple[int, Phase]]:
        with self.pool.connect() as connection:
            return [(worker.pid, worker.phase) for worker in connection.listing().workers]

    def waiting(self) -> int:
        """The pid of the worker that waits, once there is one."""
        return wait_for("a worker", lambda: [pid for pid, phase in self.phases() if phase is Phase.WAITING])[0]

    def dies(self, step: str, workers: int = 1) -> None:
        self.pool.workers_die |= step == "prepare"
        for index in range(workers):
            (self._deaths / f"{step}-{index}").touch()


def greeting(connection: socket.socket) -> tuple[int, str]:
    with connection.makefile() as lines:
        pid, text = lines.readline().split()
    return int(pid), text


def asked(connection: socket.socket, request: str) -> bytes:
    connection.sendall(request.encode())
    return connection.recv(100)


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@contextmanager
def warm(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *options: str, prepare: str = "prepare"
) -> Iterator[WarmPool]:
    deaths = directory / "deaths"
    deaths.mkdir()
    monkeypatch.setenv("POOL_TEST", str(deaths))
    prepared = ("--prepare", f"tests.integration.pool.prepared:{prepare}")
    with running(directory, "--host-memory", "16M", *prepared, *options) as pool:
        pool.make("a", SIZE)
        yield WarmPool(pool, deaths)


def test_what_a_worker_prepares_is_collected_once_and_not_while_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warm(tmp_path, monkeypatch) as pool, pool.start() as served:
        greeting(served)
        # Off while it prepared itself, and on again; what stays is frozen, and what is garbage is gone.
        assert asked(served, "collector") == b"[False] True True 0"


def test_a_worker_serves_once_and_has_its_own_copies_of_what_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warm(tmp_path, monkeypatch, "--maximum", "3") as pool:
        first_pid = pool.waiting()
        first, second = pool.start(b"one"), pool.start(b"two")
        with first, second:
            pids = [greeting(first), greeting(second)]
            assert pids[0] == (first_pid, "one")
            assert pids[1][1] == "two"
            assert asked(first, "r0 mine") == b"mine" + some_bytes(("a", 0), SIZE)[4:16]
            assert asked(second, "r0") == some_bytes(("a", 0), SIZE)[:16]
            assert [each.uses for each in pool.pool.listed()] == [2]
        wait_for("their ends", lambda: not any(lives(pid) for pid, _ in pids))
        wait_for("the release", lambda: [each.uses for each in pool.pool.listed()] == [0])
        with pool.start() as third:
            assert greeting(third)[0] not in {pid for pid, _ in pids}


def test_starts_are_repeated_when_workers_die_over_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warm(tmp_path, monkeypatch) as pool:
        for step in ("prepare", "start", "mapped"):
            pool.dies(step)
        with pool.start() as connection:
            assert greeting(connection)[1] == "hello"
            assert asked(connection, "r0") == some_bytes(("a", 0), SIZE)[:16]
            pool.dies("serve")
            connection.sendall(b"r0")
            assert connection.recv(100) == b""
        pool.dies("start", MOST_TRIES)
        with pytest.raises(PoolError, match=f"{MOST_TRIES} workers ended"):
            pool.start()
        wait_for("the release", lambda: [each.uses for each in pool.pool.listed()] == [0])
        os.kill(pool.waiting(), signal.SIGKILL)
        with pool.start() as connection:
            assert greeting(connection)[1] == "hello"


@pytest.mark.parametrize("options", [(), ("--import", "json")], ids=["executed", "forked"])
def test_a_worker_that_dies_while_it_prepares_itself_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    with warm(tmp_path, monkeypatch, *options) as pool:
        pool.dies("prepare")
        os.kill(pool.waiting(), signal.SIGKILL)
        with pool.start() as connection:
            assert greeting(connection)[1] == "hello"
    (line,) = pool.pool.said.splitlines()
    said = DEATH.fullmatch(line)
    assert said is not None
    assert said[1] == ": Killed (signal 9)"


def test_refusals_of_a_worker_and_deadlines_reach_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warm(tmp_path, monkeypatch, "--minimum", "0", "--maximum", "1") as pool:
        with pytest.raises(PoolError, match="ValueError: this is not for me"):
            pool.start(b"refuse")
        with pytest.raises(PoolError, match=r"ValueError: no file .udcff"):
            pool.start(b"refuse a path")
        with pool.start() as busy:
            pid, _ = greeting(busy)
            with pytest.raises(PoolError, match=r"not there within 0\.2 s: no worker was free"):
                pool.start(within=0.2)
        wait_for("the end", lambda: not lives(pid))
        wait_for("the release", lambda: [each.uses for each in pool.pool.listed()] == [0])
        assert [phase for _, phase in pool.phases()] in ([], [Phase.ENDING])


def test_what_a_program_waited_for_is_given_up_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warm(tmp_path, monkeypatch, "--maximum", "1") as pool, pool.start() as busy:
        pid, _ = greeting(busy)
        with ImageStore(pool.pool.store) as store, store.open("a") as image:
            request = StartImage(str(pool.pool.store), "a", key_of(image.manifest), 600.0)
        # The second one has sent more than the pool has read.
        for packets in (1, 3):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
                raw.connect(str(pool.pool.path))
                for _ in range(packets):
                    raw.send(encode(request))
                wait_for("the request", lambda: [each.uses for each in pool.pool.listed()] == [2])
            wait_for("its end", lambda: [each.uses for each in pool.pool.listed()] == [1])
        assert [phase for _, phase in pool.phases()] == [Phase.SERVING]
        assert lives(pid)


def test_a_pool_keeps_its_workers_pids_where_its_caller_ignores_sigchld(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with warm(tmp_path, monkeypatch) as pool:
            signal.signal(signal.SIGCHLD, before)
            assert pool.pool.process is not None
            ignored = procfs.status_of(Path(f"/proc/{pool.pool.process.pid}/status").read_bytes())["SigIgn"]
            assert not int(ignored[0], 16) & 1 << (signal.SIGCHLD - 1)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_idle_workers_above_the_minimum_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warm(tmp_path, monkeypatch, "--minimum", "0", "--idle", "0.2") as pool:
        assert pool.phases() == []
        with pytest.raises(PoolError, match="not there within"):
            pool.start(within=0.001)
        wait_for("no worker", lambda: pool.phases() == [])


def test_the_end_of_the_pool_ends_its_workers_and_their_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warm(tmp_path, monkeypatch) as pool:
        connection = pool.start()
        pid, _ = greeting(connection)
        waits = pool.waiting()
        # Also by a SIGKILL: nothing that it started is left.
        assert pool.pool.process is not None
        pool.pool.process.kill()
        pool.pool.process.communicate()
        with connection:
            assert connection.recv(100) == b""
        wait_for("their ends", lambda: not lives(pid) and not lives(waits))
        pool.pool.start("--host-memory", "1M")


@pytest.mark.slow(seconds=13, reason="a worker has 10 s to end in")
def test_a_worker_that_breaks_the_protocol_gets_no_request_and_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warm(tmp_path, monkeypatch, "--maximum", "2", prepare="prepare_and_lie") as pool:
        lies = pool.waiting()
        pool.dies("lie")
        wait_for("its lie", lambda: not list((tmp_path / "deaths").iterdir()))
        # Its end, which takes ten, is not waited for.
        with pool.start(within=9.0) as connection:
            assert greeting(connection)[0] != lies


@pytest.mark.slow(seconds=13, reason="a worker has 10 s to end in")
def test_a_worker_that_does_not_end_after_it_has_served_is_known_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warm(tmp_path, monkeypatch, "--maximum", "1") as pool:
        served = pool.waiting()
        with pool.start(b"linger") as connection:
            assert connection.recv(100) == b""
        wait_for("the end's beginning", lambda: (served, Phase.ENDING) in pool.phases())
        assert lives(served)
        # Its place is free when it has been ended.
        with pool.start() as connection:
            assert greeting(connection)[0] != served
        assert not lives(served)


@pytest.mark.slow(seconds=13, reason="a worker has 10 s to end in")
def test_a_worker_that_prepares_itself_ends_after_a_killed_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warm(tmp_path, monkeypatch, "--minimum", "0", prepare="prepare_or_hang") as pool:
        pool.dies("hang")
        with pytest.raises(PoolError, match="not there within"):
            pool.start(within=0.5)
        (path,) = wait_for("the worker", lambda: list((tmp_path / "deaths").glob("hangs *")))
        assert pool.pool.process is not None
        pool.pool.process.kill()
        pool.pool.process.wait(PATIENCE)
        wait_for("its end", lambda: not lives(int(path.name.split()[1])))
        pool.pool.process.communicate()
        pool.pool.start("--host-memory", "1M")


@pytest.mark.root
@pytest.mark.parametrize(("mode", "owner"), [(0o1777, 0), (0o755, 65534)])
def test_nothing_is_imported_from_a_directory_that_others_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    executed = tmp_path / "executed"
    for name in ("msgspec", "planted"):
        (theirs / f"{name}.py").write_text(f"import pathlib; pathlib.Path({str(executed)!r}).touch()\n")
    theirs.chmod(mode)
    os.chown(theirs, owner, owner)
    monkeypatch.chdir(theirs)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    worker = WorkerProcess.executed("planted:prepare", tmp_path / "pool.sock")
    worker.channel.socket.settimeout(PATIENCE)
    assert worker.channel.receive() is None
    worker.reap()
    assert not executed.exists()


@pytest.mark.parametrize("prepare", ["nosuch:f", "tests.nosuch:f", "tests.integration.pool.prepared:nosuch"])
def test_a_preparation_that_is_not_there_is_one_line(prepare: str) -> None:
    line = refused("worker", prepare)
    assert prepare in line
    assert "nosuch" in line.partition(prepare)[2]
