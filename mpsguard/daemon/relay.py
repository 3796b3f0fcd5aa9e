"""The second half of a connection: what a peer and the lane's control daemon say to each other, passed on unchanged.

After the handshake no byte passes through here: the client has a socket to its server.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from mpsguard.daemon.opening import Opening, RefusedError, checked, gone
from mpsguard.linux.packet_stream import PacketStream, close_all
from mpsguard.model import Credentials
from mpsguard.mps import handshake
from mpsguard.mps.handshake import PeerKind

_LINGER: Final = 5.0
"""Seconds one side gets to finish once the other has."""


class LaneGoneError(Exception):
    """The control daemon left before it had said anything: the peer can be brought to another one."""


class Relay:
    """One connection between a peer in the public directory and a lane."""

    def __init__(self, front: PacketStream, back: PacketStream, opening: Opening, *, impersonate: bool) -> None:
        """``impersonate``: send as the peer, which takes privileges; else as the guard itself."""
        self._front = front
        self._back = back
        self._opening = opening
        self._sender: Credentials | None = opening.sender if impersonate else None
        self.answered = False
        """Whether the control daemon has said anything after its greeting."""
        self.handed_over = False
        """Whether descriptors went to the peer: from then on it talks to its server."""

    async def run(
        self,
        greeted: Callable[[bytes], None],
        said: Callable[[bytes], Awaitable[None]],
        handed_over: Callable[[], None],
    ) -> None:
        """Relay until both sides are done.

        ``greeted`` gets the control daemon's greeting, ``said`` every message of the peer before it is passed on,
        ``handed_over`` is called once descriptors have reached the peer. Raises LaneGoneError, or RefusedError if
        the peer breaks the protocol.
        """
        await self._introduce(greeted)
        forth = asyncio.create_task(self._pass_on(said))
        back = asyncio.create_task(self._pass_back(handed_over))
        try:
            await asyncio.wait({forth, back}, return_when=asyncio.FIRST_COMPLETED)
            lane_gone = back.done() and not self.answered
            refused = forth.done() and forth.exception() is not None
            if not lane_gone and not refused:
                await asyncio.wait({forth, back}, timeout=_LINGER)
        finally:
            for task in (forth, back):
                task.cancel()
            await asyncio.wait({forth, back})
        for task in (forth, back):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if not self.answered and not back.cancelled():
            raise LaneGoneError

    async def _introduce(self, greeted: Callable[[bytes], None]) -> None:
        greeting = asyncio.create_task(self._back.receive(handshake.WORD_LIMIT))
        waiting: set[asyncio.Task[Any]] = {greeting}
        patience: float | None = _LINGER
        if self._opening.kind is PeerKind.CLIENT:
            # A client waits in silence for its socket, so all that can come is its end; it waits for a daemon that
            # hangs as it would without us. A command line has sent its first commands already.
            waiting.add(asyncio.create_task(gone(self._front)))
            patience = None
        try:
            await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not greeting.done():
                raise RefusedError("hung_up", "left, or gave up, before the control daemon spoke")
            packet = greeting.result()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
        close_all(packet.fds)
        if packet.end:
            raise LaneGoneError
        greeted(packet.data)
        try:
            await self._back.send(handshake.credentials_word(packet.data), sender=self._sender)
            await self._back.send(handshake.encode_kind(self._opening.kind), sender=self._sender)
        except ProcessLookupError:
            raise RefusedError("hung_up", "ended before it was introduced") from None
        except (BrokenPipeError, ConnectionResetError):
            raise LaneGoneError from None

    async def _pass_on(self, said: Callable[[bytes], Awaitable[None]]) -> None:
        while True:
            packet = await self._front.receive(handshake.PACKET_LIMIT)
            if packet.end:
                self._back.end_sending()
                return
            checked(packet, self._opening.sender)
            await said(packet.data)
            try:
                await self._back.send(packet.data, sender=self._sender)
            except (BrokenPipeError, ConnectionResetError, ProcessLookupError):
                return

    async def _pass_back(self, handed_over: Callable[[], None]) -> None:
        while True:
            packet = await self._back.receive(handshake.PACKET_LIMIT)
            try:
                if packet.end:
                    if self.answered:
                        self._front.end_sending()
                    return
                self.answered = True
                await self._front.send(packet.data, fds=packet.fds)
                if packet.fds and not self.handed_over:
                    self.handed_over = True
                    handed_over()
            except (BrokenPipeError, ConnectionResetError):
                return
            finally:
                close_all(packet.fds)
