"""Relay: passes the messages between a peer and the lane's control daemon on, unchanged, after the introduction.

Once the handshake is over, no byte passes through the guard: the client has a socket to its server.

The vendor's daemon has one thread, which waits for a client's last message, the acknowledgement of its socket (seen on
580.159.04): a client that is stopped at that point, or never answers, blocks all others. So the relay acknowledges the
socket at once, and absorbs the client's own acknowledgement whenever it arrives.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from mpsguard.broker.handshake import Introduction, RefusedError, checked, gone
from mpsguard.lanes import mps_protocol
from mpsguard.lanes.mps_protocol import PeerKind
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


class Relay:
    """One connection between a peer in the public directory and a lane."""

    def __init__(
        self, front: PacketStream, back: PacketStream, introduction: Introduction, *, impersonate: bool
    ) -> None:
        """``impersonate``: send with the peer's credentials, which takes privileges; else with the guard's own."""
        self._front = front
        self._back = back
        self._introduction = introduction
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
            RefusedError: the peer broke the protocol, or left.
        """
        await self._introduce(greeted)
        forth = asyncio.create_task(self._pass_on())
        back = asyncio.create_task(self._pass_back(captured, handed_over))
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

    async def _introduce(self, greeted: Callable[[bytes], None]) -> None:
        # A peer is silent while it waits for its socket, so input from it can only be its end. It waits for a hanging
        # daemon as long as it would without the guard.
        greeting = asyncio.create_task(self._back.receive(mps_protocol.WORD_LIMIT))
        left = asyncio.create_task(gone(self._front))
        try:
            await asyncio.wait({greeting, left}, return_when=asyncio.FIRST_COMPLETED)
            if not greeting.done():
                raise RefusedError("hung_up", "left before the control daemon spoke")
            await self._answer(greeting.result(), greeted)
        finally:
            await end_tasks((greeting, left))

    async def _answer(self, greeting: Packet, greeted: Callable[[bytes], None]) -> None:
        close_all(greeting.fds)
        if greeting.end:
            raise LaneGoneError
        greeted(greeting.data)
        try:
            await self._back.send(mps_protocol.credentials_word(greeting.data), sender=self._sender)
            await self._back.send(mps_protocol.encode_kind(self._introduction.kind), sender=self._sender)
        except ProcessLookupError:
            raise RefusedError("hung_up", "ended before it was introduced") from None
        except (BrokenPipeError, ConnectionResetError):
            raise LaneGoneError from None

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

    async def _pass_back(self, captured: Callable[[], None], handed_over: Callable[[], None]) -> None:
        while True:
            packet = await self._back.receive(mps_protocol.PACKET_LIMIT)
            try:
                if packet.end:
                    if self._answered and not self._acknowledged:
                        self._front.end_sending()
                    return
                self._answered = True
                first = bool(packet.fds) and not self._handed_over
                if first and self._introduction.kind is PeerKind.CLIENT:
                    self._acknowledged = True
                    # Before anything else: the daemon serves no other client until it gets this.
                    with suppress(BrokenPipeError, ConnectionResetError, ProcessLookupError):
                        await self._back.send(mps_protocol.ACKNOWLEDGEMENT, sender=self._sender)
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
