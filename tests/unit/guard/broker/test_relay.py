"""Relay and acknowledger: the daemon waits neither for the guard's event loop nor for the peer.

The daemon here is a thread that makes the vendor's blocking calls on a socket pair: SIMULATED.
"""

import asyncio
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import pytest

from mpsguard.guard.broker.handshake import Introduction, RefusedError
from mpsguard.guard.broker.relay import LaneGoneError, OtherGreetingError, Relay
from mpsguard.guard.lanes import mps_protocol
from mpsguard.guard.lanes.acknowledger import Acknowledger
from mpsguard.guard.lanes.mps_protocol import PeerKind
from mpsguard.linux.identity import Credentials
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.sockets.seqpacket import Packet
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import PATIENCE

GREETING = b"OUTHELL\0"
OTHER_GREETING = b"OUTBHELL\0"
HANDOVER = b"OUTCUFD\0"
ME = Credentials(os.getpid(), os.geteuid(), os.getegid())


class Daemon(threading.Thread):
    """Serves one connection with blocking calls."""

    def __init__(self, sock: socket.socket, serve: Callable[[socket.socket], object]) -> None:
        super().__init__(daemon=True)
        sock.settimeout(PATIENCE)
        self._sock = sock
        self._serve = serve
        self.failed: Exception | None = None
        self.done = threading.Event()
        self.start()

    def run(self) -> None:
        """Serve it."""
        try:
            self._serve(self._sock)
        except Exception as error:
            self.failed = error
        self._sock.close()
        self.done.set()

    def served(self) -> None:
        """Wait until it is done, which blocks the caller; raise what it raised."""
        assert self.done.wait(PATIENCE)
        if self.failed is not None:
            raise self.failed


def _pair() -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return one, other


def _hand_over(sock: socket.socket) -> bytes:
    """Read the introduction first, then greet and hand a socket over; return what comes after it."""
    assert sock.recv(64) == mps_protocol.credentials_word(GREETING)
    assert mps_protocol.peer_kind(sock.recv(64)) in (PeerKind.CLIENT, PeerKind.DEBUGGEE)
    sock.send(GREETING)
    with socket.socket() as given:
        socket.send_fds(sock, [HANDOVER], [given.fileno()])
    return sock.recv(64)


@contextmanager
def _relay(
    serve: Callable[[socket.socket], object],
    kind: PeerKind = PeerKind.CLIENT,
    sender: Credentials = ME,
    *,
    impersonate: bool = False,
) -> Iterator[tuple[Relay, Daemon, socket.socket]]:
    front, peer = _pair()
    back, lane = _pair()
    acknowledger = Acknowledger()
    acknowledger.open()
    daemon = Daemon(lane, serve)
    try:
        with PacketStream(front) as front_stream, PacketStream(back) as back_stream, peer:
            opening = Introduction(sender, kind, GREETING)
            yield (
                Relay(
                    front_stream,
                    back_stream,
                    opening,
                    GREETING,
                    acknowledger,
                    impersonate=impersonate,
                ),
                daemon,
                peer,
            )
    finally:
        acknowledger.close()
        daemon.join(PATIENCE)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("kind", [PeerKind.CLIENT, PeerKind.DEBUGGEE])
def test_no_pass_of_the_event_loop_is_waited_for(kind: PeerKind) -> None:
    """From the introduction on, the loop stands still until the daemon has been served."""
    said: list[bytes] = []
    introduced = threading.Event()

    def serve(sock: socket.socket) -> None:
        introduced.wait(PATIENCE)
        said.append(_hand_over(sock))

    async def run() -> None:
        with _relay(serve, kind) as (relay, daemon, peer):
            captured = asyncio.Event()
            task = asyncio.create_task(relay.run(lambda _: None, captured.set, lambda: None))
            # Its first step: it has spoken, and waits.
            await asyncio.sleep(0)
            introduced.set()
            daemon.served()
            async with asyncio.timeout(PATIENCE):
                await captured.wait()
            assert said == [mps_protocol.ACKNOWLEDGEMENT]
            word, files, _, _ = socket.recv_fds(peer, 64, 4)
            os.close(files[0])
            assert (word, len(files)) == (HANDOVER, 1)
            await _end(task)

    asyncio.run(run())


def test_a_client_waits_for_one_pass_of_the_event_loop_after_the_answer() -> None:
    """Each pass is as long as all that other users have ready in it: greeting and socket come in the same one."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        calls, told = loop.call_soon_threadsafe, threading.Semaphore(0)

        def call(callback: Callable[..., object], *arguments: Any) -> asyncio.Handle:
            handle = calls(callback, *arguments)
            told.release()
            return handle

        with patch.object(loop, "call_soon_threadsafe", call), _relay(_hand_over) as (relay, _, peer):
            entered: list[str] = []
            task = asyncio.create_task(relay.run(lambda _: None, lambda: None, lambda: entered.append("client")))
            try:
                await asyncio.sleep(0)
                # The loop stands still until greeting and socket have been read.
                for _ in range(2):
                    assert told.acquire(timeout=PATIENCE)
                await asyncio.sleep(0)
                word, files, _, _ = socket.recv_fds(peer, 64, 4, socket.MSG_DONTWAIT)
            finally:
                await _end(task)
            os.close(files[0])
            assert (word, entered) == (HANDOVER, ["client"])

    asyncio.run(run())


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="speaking as another process needs root")
def test_the_daemon_does_not_wait_for_a_client_that_has_ended() -> None:
    ended = subprocess.Popen(["/bin/sleep", "3600"])
    sender = Credentials(ended.pid, ME.uid, ME.gid)
    said: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        assert sock.recv(64)
        assert sock.recv(64)
        ended.kill()
        ended.wait()
        sock.send(GREETING)
        with socket.socket() as given:
            socket.send_fds(sock, [HANDOVER], [given.fileno()])
        said.append(sock.recv(64))

    async def run() -> None:
        with _relay(serve, sender=sender, impersonate=True) as (relay, daemon, _):
            task = asyncio.create_task(relay.run(lambda _: None, lambda: None, lambda: None))
            await asyncio.to_thread(daemon.served)
            # The end of the stream, while the client's own end of its connection is still open.
            assert said == [b""]
            await _end(task)

    asyncio.run(run())


def test_another_greeting_is_told_before_the_relay_gives_up() -> None:
    greeted: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        assert sock.recv(64)
        assert sock.recv(64)
        sock.send(OTHER_GREETING)

    async def run() -> None:
        with _relay(serve) as (relay, _, _peer), pytest.raises(OtherGreetingError):
            await relay.run(greeted.append, lambda: None, lambda: None)

    asyncio.run(run())
    assert greeted == [OTHER_GREETING]


def test_the_daemon_does_not_wait_when_a_socket_did_not_fit() -> None:
    """As of a guard that has no descriptor left: the socket is lost, and the daemon waits for an acknowledgement."""
    said: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        assert sock.recv(64)
        assert sock.recv(64)
        sock.send(GREETING)
        sock.send(bytes(mps_protocol.PACKET_LIMIT + 1))
        said.append(sock.recv(64))

    async def run() -> None:
        with _relay(serve) as (relay, daemon, _):
            with pytest.raises(OSError, match="did not fit"):
                await relay.run(lambda _: None, lambda: None, lambda: None)
            daemon.served()

    asyncio.run(run())
    assert said == [b""]


def test_a_daemon_that_closes_is_a_lane_that_is_gone() -> None:
    async def run() -> None:
        with _relay(lambda _: None) as (relay, _, _peer), pytest.raises(LaneGoneError):
            await relay.run(lambda _: None, lambda: None, lambda: None)

    asyncio.run(run())


def test_a_daemon_that_hangs_up_on_a_client_that_spoke_too_soon_is_not_gone() -> None:
    """A client is silent until it has its socket: whatever it says may be why the daemon has had enough of it."""

    def serve(sock: socket.socket) -> None:
        assert sock.recv(64) == mps_protocol.credentials_word(GREETING)
        sock.recv(64)
        sock.send(GREETING)
        assert sock.recv(64) == b"nonsense"

    async def run() -> None:
        with _relay(serve) as (relay, _, peer):

            def speak(_: bytes) -> None:
                peer.send(b"nonsense")

            with pytest.raises(RefusedError, match="spoke before it was served"):
                await relay.run(speak, lambda: None, lambda: None)

    asyncio.run(run())


class Defective(PacketStream):
    """A stream with a defect."""

    def receive_now(self, *_: object, **__: object) -> Packet:
        raise ZeroDivisionError


def test_a_defect_in_one_connection_is_reported_and_ends_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)

    async def heard(kind: type[PacketStream], acknowledger: Acknowledger) -> Packet | OSError:
        ours, theirs = _pair()
        found: asyncio.Future[Packet | OSError] = asyncio.get_running_loop().create_future()
        with kind(ours) as stream, theirs, acknowledger.hear(stream, None, found.set_result):
            theirs.send(GREETING)
            return await asyncio.wait_for(found, PATIENCE)

    async def main() -> tuple[Packet | OSError, Packet | OSError]:
        acknowledger = Acknowledger()
        acknowledger.open()
        try:
            return await heard(Defective, acknowledger), await heard(PacketStream, acknowledger)
        finally:
            acknowledger.close()

    broken, whole = asyncio.run(main())
    assert isinstance(broken, OSError)
    assert isinstance(whole, Packet)
    assert whole.data == GREETING
    assert [each.exc_type for each in reported] == [ZeroDivisionError]


def test_nothing_stays_open_however_a_relay_is_broken_off() -> None:
    async def broken_off(passes: int) -> None:
        with _relay(_hand_over) as (relay, _, _peer):
            task = asyncio.create_task(relay.run(lambda _: None, lambda: None, lambda: None))
            for _ in range(passes):
                await asyncio.sleep(0)
            await _end(task)

    asyncio.run(broken_off(0))
    before = open_descriptors()
    for passes in range(12):
        asyncio.run(broken_off(passes))
    assert opened_since(before) == []
