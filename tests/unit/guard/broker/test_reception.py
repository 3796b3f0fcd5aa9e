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
from mpsguard.linux.sockets import seqpacket
from tests.harness.waiting import until

KEPT = 10
COMING = 18


def test_arrivals_are_dropped_once_none_waits_to_be_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "_ACCEPT_BATCH", 4)
    monkeypatch.setattr(reception, "_WAITING_OF_A_USER", KEPT)
    asyncio.run(crowd())


class FullTable(ConnectionTable):
    """A table in which no user has a place."""

    def may_come(self, user: int) -> bool:
        return user < 0


async def crowd() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        seqpacket.let_descriptors_come(listener, allowed=False)
        listener.bind(b"")
        listener.listen(COMING)
        listener.setblocking(False)
        waiting = select.poll()
        waiting.register(listener, select.POLLIN)
        refused = list[int]()

        def refuse(reason: str, peer: Credentials, detail: str, count: int = 1) -> None:
            assert not waiting.poll(0), "others wait in the kernel meanwhile"
            refused.append(count)

        peers = [
            stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK))
            for _ in range(COMING)
        ]
        for peer in peers:
            peer.connect(listener.getsockname())
        room = Reception(
            "gpu",
            FullTable(COMING),
            ForeignFdCloser(),
            admit=lambda _: pytest.fail("there is no place"),
            refuse=refuse,
            metrics=Metrics(),
            events=EventStream(),
        )
        room.listen({listener: False})
        await until(lambda: sum(refused) == COMING - KEPT)
        await until(lambda: [peer.recv(1) for peer in peers[: COMING - KEPT]] == [b""] * (COMING - KEPT))
        for peer in peers[COMING - KEPT :]:
            with pytest.raises(BlockingIOError):
                peer.recv(1)
        room.close()
        await until(lambda: [peer.recv(1) for peer in peers] == [b""] * COMING)
