"""Relay: passes the messages between a peer and the lane's control daemon on, unchanged, after the introduction.

Once the handshake is over, no byte passes through the guard: the client has a socket to its server.

The vendor's daemon has one thread, which waits for a client's last message, the acknowledgement of its socket (seen on
580.159.04): a client that is stopped at that point, or never answers, blocks all others. So the guard acknowledges the
socket at once (`Acknowledger`), and absorbs the client's own acknowledgement whenever it arrives. For the same reason
it introduces the client before the daemon greets: all that the daemon reads is there already, and it never waits for
the guard's event loop.

What the daemon says is passed on by the callback that brings it, not by a task that the callback would wake: a client
waits for one pass of the event loop from the daemon's answer on, however many other clients have work in each pass.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from mpsguard.guard.broker.handshake import Introduction, RefusedError, checked
from mpsguard.guard.lanes import mps_protocol
from mpsguard.guard.lanes.acknowledger import Acknowledger
from mpsguard.guard.lanes.mps_protocol import PeerKind
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.identity import Credentials
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.sockets.seqpacket import Packet

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
        self._greeted: Callable[[bytes], None] | None = None
        """What is to be called with the greeting; None once it has come."""
        self._captured = self._handed_over = _nothing
        self._answered = False
        self._acknowledged = False
        self._left = False
        """Whether the peer has said all."""
        self._deaf = False
        """Whether the control daemon listens no more."""
        self._over = False
        """Whether nothing more is to be passed back."""
        self._failure: Exception | None = None
        self._words = 0
        self._changed: asyncio.Future[None] | None = None
        """See `_change`; None: it is not waited for."""

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
        self._greeted, self._captured, self._handed_over = greeted, captured, handed_over
        with self._acknowledger.hear(self._back, self._sender, self._take):
            await self._introduce()
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as patience:
                    while not (self._over and self._left):
                        self._limit(patience)
                        await self._pass_on()
        if self._failure is not None:
            raise self._failure

    async def _introduce(self) -> None:
        try:
            await self._back.send(mps_protocol.credentials_word(self._greeting), sender=self._sender)
            await self._back.send(mps_protocol.encode_kind(self._introduction.kind), sender=self._sender)
        except ProcessLookupError:
            raise RefusedError("hung_up", "ended before it was introduced") from None
        except (BrokenPipeError, ConnectionResetError):
            raise LaneGoneError from None
        if self._has_spoken():
            return
        # A peer is silent while it waits for its socket, so input from it can only be its end. It waits for a hanging
        # daemon as long as it would without the guard.
        await self._change()
        if not self._has_spoken():
            raise RefusedError("hung_up", "left before the control daemon spoke")

    def _has_spoken(self) -> bool:
        """Whether the control daemon has greeted, or will not."""
        return self._greeted is None or self._over

    def _limit(self, patience: asyncio.Timeout) -> None:
        """Give one side a while to finish after the other, if the client has no socket.

        If it has, only its acknowledgement is missing: if the relay closed before it, SIGPIPE would end the client.
        """
        ends = (self._over or self._left) and not self._acknowledged
        if ends and patience.when() is None:
            patience.reschedule(asyncio.get_running_loop().time() + _LINGER)
        elif not ends and patience.when() is not None:
            patience.reschedule(None)

    async def _pass_on(self) -> None:
        """Pass the peer's next packet on, or wait until there is one or something has changed."""
        if self._failure is not None:
            raise self._failure
        if self._left:
            await self._change()
            return
        try:
            packet = self._front.receive_now(mps_protocol.PACKET_LIMIT)
        except BlockingIOError:
            await self._change()
            return
        if packet.end:
            self._left = True
            self._back.end_sending()
            return
        checked(packet, self._introduction.sender)
        self._words += 1
        if self._words == MAX_WORDS:
            raise RefusedError("garbage", f"more than {MAX_WORDS} packets after the opening")
        if self._deaf or self._acknowledged:
            return
        try:
            await self._back.send(packet.data, sender=self._sender)
        except (BrokenPipeError, ConnectionResetError, ProcessLookupError):
            # Go on reading: closing with unread input would reset the front, and the peer would lose the daemon's
            # last messages.
            self._deaf = True

    async def _change(self) -> None:
        """Wait until the peer has said something, the control daemon has said all, or it has answered one that left."""
        self._changed = asyncio.get_running_loop().create_future()
        try:
            await (self._changed if self._left else self._front.readable(self._changed))
        finally:
            self._changed = None

    def _take(self, found: Packet | OSError) -> None:
        """Take what the control daemon has said, or why it is heard no more."""
        try:
            if isinstance(found, OSError):
                self._over = True
                self._failure = None if self._acknowledged else found
            else:
                self._pass_back(found)
        except Exception as error:  # told to the task that runs the relay
            self._over = True
            self._failure = error
        # Else there is nothing for the task to do: it goes on waiting for the peer's next word.
        concerns = self._over or self._left
        if concerns and self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _pass_back(self, packet: Packet) -> None:
        try:
            if self._over:
                return
            if self._greeted is not None:
                self._check(packet, self._greeted)
                self._greeted = None
                return
            if packet.end:
                self._over = True
                if not self._answered:
                    raise self._unserved()
                if not self._acknowledged:
                    self._front.end_sending()
                return
            self._answered = True
            first = bool(packet.fds) and not self._acknowledged
            if first:
                self._acknowledged = True
                self._captured()
            self._front.send_now(packet.data, fds=packet.fds)
            if first:
                # For every connection type: a process with a socket to the server can run kernels there.
                self._handed_over()
        except (BlockingIOError, BrokenPipeError, ConnectionResetError, ProcessLookupError):
            # It has left; or it has left hundreds of messages unread, which no driver sends.
            self._over = True
        finally:
            close_all(packet.fds)

    def _unserved(self) -> Exception:
        """Return what it means that the control daemon hung up; nothing of the lane, if the client gave it a reason."""
        if self._left:
            return RefusedError("hung_up", "left before it was served")
        if self._words and self._introduction.kind is PeerKind.CLIENT:
            return RefusedError("garbage", "spoke before it was served")
        return LaneGoneError()

    def _check(self, packet: Packet, greeted: Callable[[bytes], None]) -> None:
        if packet.end or packet.fds:
            raise LaneGoneError
        greeted(packet.data)
        if packet.data != self._greeting:
            raise OtherGreetingError


def _nothing() -> None:
    """Stand for a callback that has not been given yet."""
