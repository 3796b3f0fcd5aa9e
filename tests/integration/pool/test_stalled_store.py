"""Stores that do not answer: other stores are served, and the pool ends."""

import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mpsguard.images.pool.image_memory import key_of
from mpsguard.images.pool.messages import HoldImage, RequestRefused, decode_answer, encode
from mpsguard.images.pool.tiers import Tier
from mpsguard.images.store.store import ImageStore
from tests.harness.waiting import PATIENCE
from tests.hostile.stalled_files import StalledFiles
from tests.integration.pool.running import MIB, RunningPool, running

pytestmark = [pytest.mark.root, pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE here")]

HOST_MEMORY = ("--host-memory", "16M")
SOON = 10.0
"""Seconds; more than that is waited for what does not answer."""


@contextmanager
def asked(pool: RunningPool, request: HoldImage) -> Iterator[socket.socket]:
    """A connection with a request."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
        raw.settimeout(PATIENCE)
        raw.connect(str(pool.path))
        raw.send(encode(request))
        yield raw


def test_a_store_that_does_not_answer_holds_up_no_other_one(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    # The mount goes first: what waits for it cannot be killed.
    with running(tmp_path, *HOST_MEMORY) as pool, StalledFiles(mount), ExitStack() as held:
        pool.make("a", MIB)
        request = HoldImage(Tier.HOST, str(mount), "a", "0" * 64, 0.2)
        for raw in [held.enter_context(asked(pool, request)) for _ in range(40)]:
            answer = decode_answer(raw.recv(4096))
            assert isinstance(answer, RequestRefused)
            assert "not there within" in answer.reason
        with ImageStore(pool.store) as store, store.open("a") as image, pool.connect() as mine:
            mine.hold(store, image, within=SOON).close()


@pytest.mark.slow(seconds=6, reason="a load has 5 s to end in")
def test_a_pool_ends_as_far_as_it_can_while_a_piece_does_not_come(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    pool = RunningPool(tmp_path)
    pool.start(*HOST_MEMORY)
    process = pool.process
    assert process is not None
    assert process.stderr is not None
    with ExitStack() as held:
        held.callback(process.kill)
        stalled = held.enter_context(StalledFiles(mount))
        manifest = pool.make("a", 4096)
        piece = next(path for path in (pool.store / "pieces").rglob("*") if path.is_file())
        subprocess.run(["mount", "--bind", str(stalled.file), str(piece)], check=True)
        held.callback(subprocess.run, ["umount", "-l", str(piece)], check=False)
        with asked(pool, HoldImage(Tier.HOST, str(pool.store), "a", key_of(manifest), 60.0)) as raw:
            assert stalled.asked.wait(PATIENCE)
            process.send_signal(signal.SIGTERM)
            assert raw.recv(4096) == b""
            assert select.select([process.stderr], [], [], SOON)[0]
            assert "does not answer" in process.stderr.readline()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


@pytest.mark.slow(seconds=22, reason="a worker has 10 s to end in, and 10 s after SIGKILL")
def test_a_pool_ends_before_a_worker_that_no_signal_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    pool = RunningPool(tmp_path)
    with ExitStack() as held:
        stalled = held.enter_context(StalledFiles(mount))
        monkeypatch.setenv("POOL_STALLS", str(stalled.file))
        pool.start(*HOST_MEMORY, "--prepare", "tests.integration.pool.prepared:prepare_and_stall")
        process = pool.process
        assert process is not None
        assert process.stderr is not None
        held.callback(process.kill)
        assert stalled.asked.wait(PATIENCE)
        with pool.connect() as mine:
            (worker,) = mine.listing().workers
        process.send_signal(signal.SIGTERM)
        process.wait(2 * PATIENCE)
        assert select.select([process.stderr], [], [], 0)[0]
        assert str(worker.pid) in process.stderr.readline()
        assert process.returncode == 0
    process.communicate(timeout=PATIENCE)


@pytest.mark.slow(seconds=22, reason="a worker has 10 s to end in, and 10 s after SIGKILL")
def test_a_pool_ends_before_an_import_that_no_signal_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    monkeypatch.setenv("POOL_TEST", str(tmp_path))
    pool = RunningPool(tmp_path)
    with ExitStack() as held:
        stalled = held.enter_context(StalledFiles(mount))
        monkeypatch.setenv("POOL_STALLS", str(stalled.file))
        workers = (
            "--prepare",
            "tests.integration.pool.prepared:prepare",
            "--import",
            "tests.integration.pool.imported",
        )
        pool.start(*HOST_MEMORY, *workers)
        process = pool.process
        assert process is not None
        assert process.stderr is not None
        held.callback(process.kill)
        assert stalled.asked.wait(PATIENCE)
        (template,) = (path.name.split()[-1] for path in tmp_path.glob("imported by *"))
        process.send_signal(signal.SIGTERM)
        process.wait(2 * PATIENCE)
        assert select.select([process.stderr], [], [], 0)[0]
        assert template in process.stderr.readline()
        assert process.returncode == 0
    process.communicate(timeout=PATIENCE)
