"""Relay: passes the messages between a peer and the lane's control daemon on, unchanged, after the introduction.

Once the handshake is over, no byte passes through the guard: the client has a socket to its server.

The vendor's daemon has one thread, which waits for a client's last message, the acknowledgement of its socket (seen on
580.159.04): a client that is stopped at that point, or never answers, blocks all others. So the guard acknowledges the
socket at once (`Acknowledger`), and absorbs the client's own acknowledgement whenever it arrives. For the same reason
it introduces the client before the daemon greets: all that the daemon reads is there already, and it never waits for
the guard's event loop.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from mpsguard.broker.handshake import Introduction, RefusedError, checked, gone
from mpsguard.lanes import mps_protocol
from mpsguard.lanes.acknowledger import Acknowledger, Heard
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.sockets.seqpacket import Packet
from mpsguard.model import Credentials
from mpsguard.tasks import end_tasks

_LINGER: Final = 5.0
"""Seconds for one side to finish after the other."""

MAX_WORDS: Final = 16
"""Packets of a peer that are read after its opening: a CUDA client sends one (535, 550, 580). More would be read in one
turn of the event loop for as long as the peer sends faster than they are read."""


class LaneGoneError(Exception):
    """The control daemon closed the connection before it answered: the peer can be relayed to another one."""


class OtherGreetingError(Exception):
    """The control daemon greets differently, as after an update of the driver: the peer is to be introduced again."""


class Relay:
    """One connection between a peer in the public directory and a lane."""

    def __init__(
        self,
        front: PacketStream,
        back: PacketStream,
        introduction: Introduction,
        greeting: bytes,
        acknowledger: Acknowledger,
        *,
        impersonate: bool,
    ) -> None:
        """Create it; `run` relays.

        Args:
            front: the connection to the peer.
            back: the connection to the lane's control daemon.
            introduction: the peer's.
            greeting: with which the daemon is expected to greet.
            acknowledger: acknowledges the client's socket.
            impersonate: send with the peer's credentials, which takes privileges; else with the guard's own.
        """
        self._front = front
        self._back = back
        self._introduction = introduction
        self._greeting = greeting
        self._acknowledger = acknowledger
        self._sender: Credentials | None = introduction.sender if impersonate else None
        self._answered = False
        self._acknowledged = False
        self._handed_over = False

    async def run(
        self, greeted: Callable[[bytes], None], captured: Callable[[], None], handed_over: Callable[[], None]
    ) -> None:
        """Relay until both sides are done.

        Args:
            greeted: called with the control daemon's greeting.
            captured: called once the control daemon has answered with a socket: the server has settled what the client
                gets of the GPU, and the control daemon takes commands again.
            handed_over: called once descriptors have reached the peer.

        Raises:
            LaneGoneError: the control daemon left without an answer.
            OtherGreetingError: the control daemon greeted with another word than was expected.
            RefusedError: the peer broke the protocol, or left.
        """
        with self._acknowledger.hear(self._back, self._sender) as heard:
            await self._introduce(heard, greeted)
            await self._pass(heard, captured, handed_over)

    async def _pass(self, heard: Heard, captured: Callable[[], None], handed_over: Callable[[], None]) -> None:
        forth = asyncio.create_task(self._pass_on())
        back = asyncio.create_task(self._pass_back(heard, captured, handed_over))
        try:
            await asyncio.wait({forth, back}, return_when=asyncio.FIRST_COMPLETED)
            if self._acknowledged:
                # Only the client's acknowledgement is missing. If the relay closed before it, SIGPIPE would end the
                # client.
                await asyncio.wait({forth, back})
            elif self._answered or not back.done():
                await asyncio.wait({forth, back}, timeout=0 if _failed(forth) else _LINGER)
        finally:
            await end_tasks((forth, back))
        for task in (forth, back):
            if _failed(task):
                task.result()
        if not self._answered and not back.cancelled():
            raise LaneGoneError

    async def _introduce(self, heard: Heard, greeted: Callable[[bytes], None]) -> None:
        try:
            await self._back.send(mps_protocol.credentials_word(self._greeting), sender=self._sender)
            await self._back.send(mps_protocol.encode_kind(self._introduction.kind), sender=self._sender)
        except ProcessLookupError:
            raise RefusedError("hung_up", "ended before it was introduced") from None
        except (BrokenPipeError, ConnectionResetError):
            raise LaneGoneError from None
        # A peer is silent while it waits for its socket, so input from it can only be its end. It waits for a hanging
        # daemon as long as it would without the guard.
        greeting = asyncio.create_task(heard.next())
        left = asyncio.create_task(gone(self._front))
        try:
            await asyncio.wait({greeting, left}, return_when=asyncio.FIRST_COMPLETED)
            if not greeting.done():
                raise RefusedError("hung_up", "left before the control daemon spoke")
            self._check(greeting.result(), greeted)
        finally:
            await end_tasks((greeting, left))

    def _check(self, greeting: Packet, greeted: Callable[[bytes], None]) -> None:
        close_all(greeting.fds)
        if greeting.end or greeting.fds:
            raise LaneGoneError
        greeted(greeting.data)
        if greeting.data != self._greeting:
            raise OtherGreetingError

    async def _pass_on(self) -> None:
        deaf = False
        for _ in range(MAX_WORDS):
            packet = await self._front.receive(mps_protocol.PACKET_LIMIT)
            if packet.end:
                self._back.end_sending()
                return
            checked(packet, self._introduction.sender)
            if deaf or self._acknowledged:
                continue
            try:
                await self._back.send(packet.data, sender=self._sender)
            except (BrokenPipeError, ConnectionResetError, ProcessLookupError):
                # Go on reading: closing with unread input would reset the front, and the peer would lose the daemon's
                # last messages.
                deaf = True
        raise RefusedError("garbage", f"more than {MAX_WORDS} packets after the opening")

    async def _pass_back(self, heard: Heard, captured: Callable[[], None], handed_over: Callable[[], None]) -> None:
        while True:
            if self._acknowledged:
                packet = await self._back.receive(mps_protocol.PACKET_LIMIT)
            else:
                packet = await heard.next()
            try:
                if packet.end:
                    if self._answered and not self._acknowledged:
                        self._front.end_sending()
                    return
                self._answered = True
                first = bool(packet.fds) and not self._handed_over
                if first:
                    self._acknowledged = True
                    captured()
                await self._front.send(packet.data, fds=packet.fds)
                if first:
                    self._handed_over = True
                    # For every connection type: a process with a socket to the server can run kernels there.
                    handed_over()
            except (BrokenPipeError, ConnectionResetError, ProcessLookupError):
                return
            finally:
                close_all(packet.fds)


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None
