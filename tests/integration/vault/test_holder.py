"""The guard's end of a holder that hangs, or cannot be started: every wait ends, and it is there again later."""

import asyncio
import gc
import os
import resource
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fault_injection.holders import holders
from mpsguard.linux.descriptors import fd_bundle
from mpsguard.linux.descriptors.fd_bundle import FdBundle
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.vault.server.fd_storage.holder_client import HolderClient
from mpsguard.vault.server.fd_storage.holder_process import HolderProcess
from mpsguard.vault.wire.errors import UnavailableError
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import PATIENCE

IMPATIENT = 0.2


@pytest.fixture
def directory() -> Iterator[Path]:
    """Where a holder is, which is ended with the test."""
    before = open_descriptors()
    with tempfile.TemporaryDirectory(prefix="mgv-") as root:
        run_directory = Path(root) / "run"
        yield run_directory / "holder"
        for pid in holders(run_directory):
            # One that has been left ends by itself.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert opened_since(before) == []


def scenario(body: Callable[[], Coroutine[object, object, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await body()

    asyncio.run(bounded())


def holder_of(directory: Path) -> int:
    (pid,) = holders(directory.parent)
    return pid


def bundle() -> FdBundle:
    fd = os.memfd_create("chunk")
    try:
        return fd_bundle.pack(b"mgv-r1", (fd,))
    finally:
        os.close(fd)


def no_bundle() -> FdBundle:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other.close()
    return FdBundle(one, socket.socket())


def test_a_late_answer_is_not_taken_for_that_to_the_next_question(directory: Path) -> None:
    async def body() -> None:
        patient = await HolderClient.open(directory)
        await patient.keep("mgv-r1", bundle())
        await patient.close()
        storage = await HolderClient.open(directory, IMPATIENT)
        pid = holder_of(directory)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(UnavailableError):
            await storage.keep("mgv-r2", bundle())
        os.kill(pid, signal.SIGCONT)
        # The answer to the first is on its way, and is "kept"; this one is nothing that a holder keeps.
        with pytest.raises(UnavailableError):
            await storage.keep("mgv-r3", no_bundle())
        await storage.lost()
        await storage.close()
        again = await HolderClient.open(directory)
        held = await again.list()
        for sock in held.values():
            sock.close()
        assert {"mgv-r1", "mgv-r2"} >= held.keys() >= {"mgv-r1"}
        await again.leave()
        await again.close()

    scenario(body)


def test_the_answer_to_a_cancelled_request_answers_no_other(directory: Path) -> None:
    async def body() -> None:
        storage = await HolderClient.open(directory)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as listener:
            listener.bind(str(directory / "holder.sock"))
            listener.listen()
            cancelled = asyncio.create_task(storage.keep("mgv-r1", bundle()))
            with await accepted(listener) as first:
                assert await heard(first) == b"keep mgv-r1"
                watch = asyncio.create_task(storage.lost())
                cancelled.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await cancelled
                with suppress(BrokenPipeError):
                    first.send_now(b"kept")
                refused = asyncio.create_task(storage.keep("mgv-r2", bundle()))
                assert await heard(first) == b""
            with await accepted(listener) as second:
                assert await heard(second) == b"keep mgv-r2"
                second.send_now(b"refused for a reason")
                with pytest.raises(UnavailableError, match="for a reason"):
                    await refused
                kept = asyncio.create_task(storage.keep("mgv-r3", bundle()))
                assert await heard(second) == b"keep mgv-r3"
                second.send_now(b"kept")
                await kept
                assert not watch.done(), "the holder, which lives, has lost nothing"
            watch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await watch
        await storage.close()

    scenario(body)


async def accepted(listener: socket.socket) -> PacketStream:
    """The next connection to a scripted holder."""
    sock, _ = await asyncio.get_running_loop().sock_accept(listener)
    return PacketStream(sock)


async def heard(guard: PacketStream) -> bytes:
    """The next word of the guard; empty at the end of the connection."""
    packet = await guard.receive(512)
    for fd in packet.fds:
        os.close(fd)
    return packet.data


def test_a_holder_that_was_told_to_leave_has_left(directory: Path) -> None:
    async def body() -> None:
        storage = await HolderClient.open(directory)
        await storage.keep("mgv-r1", bundle())
        await storage.leave()
        assert not holders(directory.parent)
        assert list(directory.iterdir()) == []
        await storage.close()

    scenario(body)


def test_a_request_to_a_holder_that_hangs_fails(directory: Path) -> None:
    async def body() -> None:
        first = await HolderClient.open(directory)
        await first.keep("mgv-r1", bundle())
        await first.close()
        os.kill(holder_of(directory), signal.SIGSTOP)
        second = await HolderClient.open(directory, IMPATIENT)
        with pytest.raises(UnavailableError):
            await second.list()
        await second.close()

    scenario(body)


class Counted(socket.socket):
    """A listening socket that tells of every accept(2) that failed."""

    def __init__(self) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.failed = threading.Semaphore(0)

    def accept(self) -> tuple[socket.socket, object]:
        try:
            return super().accept()
        except OSError:
            self.failed.release()
            raise


def ask(guard: socket.socket, word: str, *fds: int) -> bytes:
    seqpacket.send(guard, word.encode(), fds=fds)
    return guard.recv(512)


@pytest.fixture
def limit() -> Iterator[Callable[[int], None]]:
    """Sets how many descriptors there may be in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_holder_that_cannot_let_a_guard_in_goes_on_holding(tmp_path: Path, limit: Callable[[int], None]) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = open_descriptors()
    with Counted() as listener, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as guard:
        listener.bind(str(tmp_path / "holder"))
        listener.listen()
        holding = threading.Thread(target=HolderProcess().run, args=(listener,))
        first = os.dup(guard.fileno())
        os.close(first)
        limit(first)
        holding.start()
        guard.connect(str(tmp_path / "holder"))
        for _ in range(2):
            assert listener.failed.acquire(timeout=PATIENCE)
        limit(soft)
        made = bundle()
        assert ask(guard, "keep mgv-r1", made.kept.fileno()) == b"kept"
        made.kept.close()
        assert ask(guard, "forget mgv-r1") == b"forgotten"
        assert ask(guard, "leave") == b"left"
        holding.join(PATIENCE)
        made.receipt.close()
    gc.collect()
    assert opened_since(before) == []


def test_a_holder_keeps_descriptors_free_for_serving(tmp_path: Path, limit: Callable[[int], None]) -> None:
    before = open_descriptors()
    with Counted() as listener, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as guard:
        listener.bind(str(tmp_path / "holder"))
        listener.listen()
        holding = threading.Thread(target=HolderProcess().run, args=(listener,))
        holding.start()
        guard.connect(str(tmp_path / "holder"))
        made = bundle()
        limit(64 + 2)
        assert [ask(guard, f"keep mgv-r{n}", made.kept.fileno()).split()[0] for n in (1, 2, 3)] == [
            b"kept",
            b"kept",
            b"refused",
        ]
        assert ask(guard, "keep mgv-r2", made.kept.fileno()) == b"kept", "in the place of the one before"
        for number in (1, 2):
            assert ask(guard, f"forget mgv-r{number}") == b"forgotten"
        assert ask(guard, "leave") == b"left"
        holding.join(PATIENCE)
        made.kept.close()
        made.receipt.close()
    gc.collect()
    assert opened_since(before) == []


def test_a_holder_that_could_not_be_started_is_started_later(directory: Path) -> None:
    async def body() -> None:
        storage = await HolderClient.open(directory)
        await storage.keep("mgv-r1", bundle())
        os.kill(holder_of(directory), signal.SIGKILL)
        # Nothing is held in a directory that others may enter.
        directory.chmod(0o755)
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await storage.lost()
        directory.chmod(0o700)
        await storage.lost()
        await storage.keep("mgv-r1", bundle())
        await storage.leave()
        await storage.close()

    scenario(body)
