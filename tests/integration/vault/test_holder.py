"""The guard's end of a holder that hangs, or cannot be started: every wait ends, and it is there again later."""

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest

from fault_injection.holders import holders
from mpsguard.linux import fd_parcel
from mpsguard.linux.fd_parcel import Parcel
from mpsguard.vault.errors import UnavailableError
from mpsguard.vault.holder_keeper import HolderKeeper
from tests.integration.vault.running import DEADLINE, descriptors

IMPATIENT = 0.2


@pytest.fixture
def directory() -> Iterator[Path]:
    """Where a holder is, which is ended with the test."""
    before = descriptors()
    with tempfile.TemporaryDirectory(prefix="mgv-") as root:
        run_directory = Path(root) / "run"
        yield run_directory / "holder"
        for pid in holders(run_directory):
            os.kill(pid, signal.SIGKILL)
    assert descriptors() == before


def story(body: Callable[[], Coroutine[object, object, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE):
            await body()

    asyncio.run(bounded())


def holder_of(directory: Path) -> int:
    (pid,) = holders(directory.parent)
    return pid


def parcel() -> Parcel:
    fd = os.memfd_create("chunk")
    try:
        return fd_parcel.pack(b"mgv-r1", (fd,))
    finally:
        os.close(fd)


def no_parcel() -> Parcel:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other.close()
    return Parcel(one, socket.socket())


def test_a_late_answer_is_not_taken_for_that_to_the_next_question(directory: Path) -> None:
    async def body() -> None:
        patient = await HolderKeeper.open(directory)
        await patient.keep("mgv-r1", parcel())
        await patient.close()
        keeper = await HolderKeeper.open(directory, IMPATIENT)
        pid = holder_of(directory)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(UnavailableError):
            await keeper.keep("mgv-r2", parcel())
        os.kill(pid, signal.SIGCONT)
        # The answer to the first is on its way, and is "kept"; this one is nothing that a holder keeps.
        with pytest.raises(UnavailableError):
            await keeper.keep("mgv-r3", no_parcel())
        await keeper.lost()
        await keeper.close()
        again = await HolderKeeper.open(directory)
        held = await again.list()
        for sock in held.values():
            sock.close()
        assert {"mgv-r1", "mgv-r2"} >= held.keys() >= {"mgv-r1"}
        await again.leave()
        await again.close()

    story(body)


def test_who_asks_a_holder_that_hangs_for_what_it_has_is_told_so(directory: Path) -> None:
    async def body() -> None:
        first = await HolderKeeper.open(directory)
        await first.keep("mgv-r1", parcel())
        await first.close()
        os.kill(holder_of(directory), signal.SIGSTOP)
        second = await HolderKeeper.open(directory, IMPATIENT)
        with pytest.raises(UnavailableError):
            await second.list()
        await second.close()

    story(body)


def test_a_holder_that_could_not_be_started_is_started_later(directory: Path) -> None:
    async def body() -> None:
        keeper = await HolderKeeper.open(directory)
        await keeper.keep("mgv-r1", parcel())
        os.kill(holder_of(directory), signal.SIGKILL)
        # Nobody holds anything in a directory that others may enter.
        directory.chmod(0o755)
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await keeper.lost()
        directory.chmod(0o700)
        await keeper.lost()
        await keeper.keep("mgv-r1", parcel())
        await keeper.leave()
        await keeper.close()

    story(body)
