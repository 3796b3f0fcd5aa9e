"""SEQPACKET messages: their sender, what came along, and that no descriptor is lost on the way."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.linux.identity import Credentials
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.packet_stream import PacketStream
from tests.harness.open_descriptors import open_descriptors, opened_since

FailoverPair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[FailoverPair]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    with ours, theirs:
        yield ours, theirs


def test_the_kernel_names_the_sender_of_a_packet(pair: FailoverPair) -> None:
    ours, theirs = pair
    theirs.send(b"hello")
    packet = seqpacket.receive(ours, 64)
    assert packet.data == b"hello"
    assert packet.sender == Credentials(os.getpid(), os.getuid(), os.getgid())
    assert not packet.truncated


def test_descriptors_come_close_on_exec_and_are_the_callers(pair: FailoverPair) -> None:
    ours, theirs = pair
    read_end, write_end = os.pipe()
    seqpacket.send(theirs, b"take", fds=(read_end, write_end))
    os.close(read_end)
    os.close(write_end)
    packet = seqpacket.receive(ours, 64)
    assert len(packet.fds) == 2
    assert not any(os.get_inheritable(fd) for fd in packet.fds)
    os.write(packet.fds[1], b"x")
    assert os.read(packet.fds[0], 1) == b"x"
    for fd in packet.fds:
        os.close(fd)


def test_too_long_is_marked_and_too_many_descriptors_do_not_leak(pair: FailoverPair) -> None:
    ours, theirs = pair
    theirs.send(b"x" * 65)
    assert seqpacket.receive(ours, 64).truncated
    before = open_descriptors()
    with open(os.devnull) as null:
        seqpacket.send(theirs, b"many", fds=(null.fileno(),) * (seqpacket.MAX_FDS + 4))
    packet = seqpacket.receive(ours, 64)
    assert packet.truncated
    for fd in packet.fds:
        os.close(fd)
    assert opened_since(before) == []


def test_an_empty_packet_is_not_the_end(pair: FailoverPair) -> None:
    ours, theirs = pair
    theirs.send(b"")
    assert not seqpacket.receive(ours, 64).end
    theirs.close()
    assert seqpacket.receive(ours, 64).end


def test_the_last_words_of_a_peer_that_left_ours_unread_are_heard_and_then_the_end(pair: FailoverPair) -> None:
    ours, theirs = pair
    ours.send(b"never read")
    theirs.send(b"last words")
    theirs.close()
    assert seqpacket.receive(ours, 64).data == b"last words"
    assert seqpacket.receive(ours, 64).end


def test_a_peer_that_left_ours_unread_without_a_word_has_ended(pair: FailoverPair) -> None:
    ours, theirs = pair
    ours.send(b"never read")
    theirs.close()
    assert seqpacket.receive(ours, 64).end


def test_nothing_there_is_not_the_end(pair: FailoverPair) -> None:
    with pytest.raises(BlockingIOError):
        seqpacket.receive(pair[0], 64)


@pytest.mark.root
@pytest.mark.skipif(not seqpacket.may_impersonate(), reason="needs CAP_SYS_ADMIN, CAP_SETUID and CAP_SETGID")
def test_with_the_privileges_a_packet_bears_another_process_name(pair: FailoverPair) -> None:
    ours, theirs = pair
    somebody = Credentials(os.getppid(), 4711, 4712)
    seqpacket.send(theirs, b"hi", sender=somebody)
    assert seqpacket.receive(ours, 64).sender == somebody


def test_a_pidfd_of_the_peer_is_owned_by_the_caller(pair: FailoverPair) -> None:
    before = open_descriptors()
    pidfd = seqpacket.peer_pidfd(pair[0])
    if pidfd is None:
        pytest.skip("this kernel has no SO_PEERPIDFD (before Linux 6.5)")
    assert len(opened_since(before)) == 1
    os.close(pidfd)


def test_a_stream_waits_for_room_and_ends_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        with listener:
            listener.bind(str(tmp_path / "s"))
            listener.listen(0)
            first = await PacketStream.connect(str(tmp_path / "s"))
            # The backlog of 0 holds one: the second has to wait until one is accepted.
            second_try = asyncio.create_task(PacketStream.connect(str(tmp_path / "s")))
            accepted = PacketStream(await accept(listener))
            second = await second_try
            with first, second, accepted:
                sending = asyncio.create_task(fill(first))
                received = 0
                while received < 2000:
                    packet = await accepted.receive(4096)
                    assert len(packet.data) == 4000
                    received += 1
                await sending
                first.end_sending()
                assert (await accepted.receive(4096)).end

    async def accept(listener: socket.socket) -> socket.socket:
        sock, _ = await asyncio.get_running_loop().sock_accept(listener)
        return sock

    async def fill(stream: PacketStream) -> None:
        for _ in range(2000):
            await stream.send(b"x" * 4000)

    asyncio.run(scenario())
