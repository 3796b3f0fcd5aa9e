"""Connections that cannot be served yet: how many are kept, and when the others are dropped."""

import asyncio
import select
import socket
from contextlib import ExitStack

import pytest

from mpsguard.guard.broker import reception
from mpsguard.guard.broker.connection_table import ConnectionTable
from mpsguard.guard.broker.reception import Reception
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.linux.descriptors.fd_closer import ForeignFdCloser
from mpsguard.linux.identity import Credentials
from mpsguard.linux.sockets import accepting, seqpacket
from tests.harness.waiting import until

KEPT = 5
COMING = 18


class FullTable(ConnectionTable):
    """A table in which no user has a place."""

    def may_come(self, user: int) -> bool:
        return user < 0


class Room:
    """A reception that may serve no peer, and a crowd that has come to its listener."""

    def __init__(self, stack: ExitStack) -> None:
        self.listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        seqpacket.let_descriptors_come(self.listener, allowed=False)
        self.listener.bind(b"")
        self.listener.listen(COMING)
        self.listener.setblocking(False)
        self._waiting = select.poll()
        self._waiting.register(self.listener, select.POLLIN)
        self.refused: list[bool] = []
        """Of each that was refused, whether others waited in the kernel meanwhile."""
        kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
        self.peers = [stack.enter_context(socket.socket(socket.AF_UNIX, kind)) for _ in range(COMING)]
        for peer in self.peers:
            peer.connect(self.listener.getsockname())

        def refuse(reason: str, peer: Credentials, detail: str, count: int = 1) -> None:
            self.refused += [bool(self._waiting.poll(0))] * count

        self.reception = Reception(
            "gpu",
            FullTable(COMING),
            ForeignFdCloser(),
            admit=lambda _: pytest.fail("there is no place"),
            refuse=refuse,
            metrics=Metrics(),
            events=EventStream(),
        )

    def closed(self) -> list[bool]:
        """Of each peer, whether its connection was closed."""
        return [accepting.has_left(peer.fileno()) for peer in self.peers]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "_ACCEPT_BATCH", 4)
    monkeypatch.setattr(reception, "_WAITING_OF_A_USER", KEPT)


def test_arrivals_are_dropped_once_none_waits_to_be_accepted() -> None:
    async def crowd() -> None:
        with ExitStack() as stack:
            room = Room(stack)
            room.reception.listen({room.listener: False})
            await until(lambda: len(room.refused) == COMING - KEPT)
            assert not any(room.refused)
            assert room.closed() == [True] * (COMING - KEPT) + [False] * KEPT
            room.reception.close()
            assert all(room.closed())

    asyncio.run(crowd())


def test_what_a_listener_had_that_is_listened_to_no_more_delays_nothing() -> None:
    async def crowd() -> None:
        with ExitStack() as stack:
            room = Room(stack)
            for _ in range(2):
                room.reception.listen({room.listener: False})
                room.reception.listen({})
            await until(lambda: len(room.refused) == 8 - KEPT)
            assert all(room.refused)
            room.reception.close()

    asyncio.run(crowd())
