"""Sockets of users that flood, and of one that does not: in which order they are served."""

import asyncio
import os
import socket
import time

import pytest

from mpsguard.linux.sockets import accepting, seqpacket
from mpsguard.linux.sockets.accepting import Acceptor
from mpsguard.linux.sockets.user_turns import QUOTA, UserTurns
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import PATIENCE

FLOODS, CALM = 65534, 1000


def pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


def test_a_user_is_not_heeded_after_all_that_another_has_ready() -> None:
    order: list[int] = []

    async def wait(turns: UserTurns, uid: int, sock: socket.socket) -> None:
        turns.enter(uid)
        await turns.readable(uid, sock.fileno())
        turns.leave(uid)
        order.append(uid)

    async def run() -> None:
        turns = UserTurns()
        flood, (calm, calls) = [pair() for _ in range(100)], pair()
        waiting = [asyncio.create_task(wait(turns, FLOODS, ours)) for ours, _ in flood]
        waiting.append(asyncio.create_task(wait(turns, CALM, calm)))
        await asyncio.sleep(0)
        # All at once, as far as the event loop can tell.
        for _, theirs in flood:
            theirs.close()
        calls.send(b"x")
        await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
        for ours, _ in (*flood, (calm, calls)):
            ours.close()
        calls.close()

    asyncio.run(run())
    assert len(order) == 101
    assert order.index(CALM) <= QUOTA


def test_a_socket_is_waited_for_in_both_directions() -> None:
    async def run() -> None:
        turns = UserTurns()
        ours, theirs = pair()
        with ours, theirs:
            filled = 0
            try:
                while True:
                    filled += ours.send(b"x")
            except BlockingIOError:
                pass
            turns.enter(CALM)
            readable = asyncio.create_task(turns.readable(CALM, ours.fileno()))
            writable = asyncio.create_task(turns.writable(CALM, ours.fileno()))
            await asyncio.sleep(0)
            theirs.send(b"x")
            await asyncio.wait_for(readable, PATIENCE)
            assert not writable.done()
            for _ in range(filled):
                theirs.recv(1)
            await asyncio.wait_for(writable, PATIENCE)

    asyncio.run(run())


def test_nothing_is_open_for_a_user_without_sockets() -> None:
    async def run() -> None:
        turns = UserTurns()
        ours, theirs = pair()
        with ours, theirs:
            before = open_descriptors()
            for _ in range(2):
                turns.enter(CALM)
            task = asyncio.create_task(turns.readable(CALM, ours.fileno()))
            await asyncio.sleep(0)
            assert len(opened_since(before)) == 1
            for _ in range(2):
                turns.leave(CALM)
            assert len(opened_since(before)) == 1
            task.cancel()
            await asyncio.wait({task})
            assert opened_since(before) == []

    asyncio.run(run())


def listening(*, sealed: bool) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    seqpacket.let_descriptors_come(listener, allowed=not sealed)
    listener.bind(b"")
    listener.listen()
    listener.setblocking(False)
    return listener


def test_a_connection_is_accepted_as_by_the_socket_module() -> None:
    with listening(sealed=False) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        acceptor = Acceptor(listener)
        with pytest.raises(BlockingIOError):
            acceptor.accept()
        peer.connect(listener.getsockname())
        fd, process = acceptor.accept()
        with accepting.as_socket(fd) as accepted:
            assert not os.get_blocking(accepted.fileno())
            assert not accepted.get_inheritable()
            assert process == seqpacket.peer(accepted)
            peer.send(b"word")
            assert accepted.recv(16) == b"word"
        listener.close()
        with pytest.raises(OSError, match=r"\[Errno 9\]"):
            acceptor.accept()


@pytest.mark.parametrize(
    ("sealed", "since", "expected"),
    [(True, 2.0, True), (True, 0.5, False), (False, 2.0, False)],
    ids=["settled", "just set up", "descriptors come"],
)
def test_peers_are_sealed_once_none_waits_at_a_listener_that_lets_no_descriptors_come(
    monkeypatch: pytest.MonkeyPatch, sealed: bool, since: float, expected: bool
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with listening(sealed=sealed) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect(listener.getsockname())
        acceptor = Acceptor(listener)
        now += since
        os.close(acceptor.accept()[0])
        assert not acceptor.are_sealed, "this one may have connected before the listener was set up"
        with pytest.raises(BlockingIOError):
            acceptor.accept()
        assert acceptor.are_sealed == (expected and seqpacket.kernel_refuses_descriptors())


def test_a_connection_says_whether_its_peer_has_left_and_takes_nothing_of_what_it_sent() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        assert not accepting.has_left(here.fileno())
        there.send(b"a word")
        assert not accepting.has_left(here.fileno())
        there.shutdown(socket.SHUT_WR)
        assert not accepting.has_left(here.fileno()), "it may still listen"
        there.close()
        assert accepting.has_left(here.fileno())
        assert here.recv(16) == b"a word"


def test_a_connection_that_is_closed_at_once_is_closed_once() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        number = here.fileno()
        accepting.close(here.detach())
        assert here.fileno() == -1
        with pytest.raises(OSError, match=r"\[Errno 9\]"):
            os.fstat(number)
        accepting.close(here.detach())
        assert accepting.has_left(there.fileno())
