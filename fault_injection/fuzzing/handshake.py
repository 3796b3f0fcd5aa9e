"""The MPS handshake: its words, the opening of a connection, and the relay behind it."""

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

from fault_injection.fuzzing.loop import CaseLoop
from fault_injection.fuzzing.mutation import changed, index, number
from fault_injection.fuzzing.surface import BrokenPromiseError, Surface
from mpsguard.guard.broker.handshake import Introduction, RefusedError, introduce
from mpsguard.guard.broker.relay import LaneGoneError, OtherGreetingError, Relay
from mpsguard.guard.lanes import mps_protocol, settings
from mpsguard.guard.lanes.acknowledger import Acknowledger
from mpsguard.guard.lanes.command import CommandReply
from mpsguard.guard.lanes.mps_protocol import PeerKind, ProtocolError
from mpsguard.guard.model import LaneSettings
from mpsguard.linux.descriptors.fd_closer import ForeignFdCloser
from mpsguard.linux.identity import Credentials
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.packet_stream import PacketStream, StrangerStream
from mpsguard.linux.sockets.user_turns import UserTurns

GREETING: Final = b"OUTBHELL\0"
CREDENTIALS: Final = mps_protocol.credentials_word(GREETING)
HANDOVER: Final = b"OUTBCUFD\0"
"""What announces the socket to the server."""
KINDS: Final = tuple(mps_protocol.encode_kind(kind) for kind in PeerKind)
COMMANDS: Final = (
    b"get_server_list\n\0",
    b"set_default_active_thread_percentage 50\n\0",
    b"set_default_device_pinned_mem_limit 0 2G\n\0",
    b"set_default_client_priority 1\n\0",
    b"ps\n\0",
)
_WORDS: Final = (
    GREETING,
    CREDENTIALS,
    HANDOVER,
    *KINDS,
    *COMMANDS,
    mps_protocol.END_OF_COMMANDS,
    mps_protocol.encode_reply("Server not found"),
    mps_protocol.encode_reply(2),
)
_ANSWERS: Final = ("50.0", "2G", "1", "", "nan", "inf", "-1", "9" * 30, "9" * 5000, "0x10")


class Words(Surface[bytes]):
    """The decoders of packets."""

    name = "handshake words"
    share = 100

    def make(self, chance: Random) -> bytes:
        """A word, changed."""
        if chance.random() < 0.1:
            return number(chance).to_bytes(10, "little", signed=True)[: (4, 8)[index(chance, 2)]]
        return changed(chance, _WORDS[index(chance, len(_WORDS))], _WORDS)

    def feed(self, case: bytes) -> None:
        """Decode it as each kind of word."""
        for decode in (
            mps_protocol.check_greeting,
            mps_protocol.peer_kind,
            mps_protocol.command_length,
            mps_protocol.decode_reply,
        ):
            try:
                decode(case)
            except ProtocolError:
                continue
        line = mps_protocol.decode_command(case)
        length, text = mps_protocol.encode_command(line)
        if struct.unpack("<q", length)[0] != len(text) or mps_protocol.decode_command(text) != line:
            raise BrokenPromiseError(f"a command line does not come back as it was: {text!r}")
        asked = settings.asked_by(line)
        if asked is not None:
            mps_protocol.encode_command(asked.query)
            for answer in _ANSWERS:
                if settings.was_taken(asked, CommandReply((answer,), 0)) and asked.server is None:
                    kept = settings.with_setting(_NO_SETTINGS, asked)
                    msgspec.json.encode(kept)
                    settings.replay_commands(kept)


_NO_SETTINGS: Final = LaneSettings()


class Said(msgspec.Struct, frozen=True):
    """A packet of a peer."""

    data: bytes
    descriptors: int = 0
    under: Credentials | None = None
    """The credentials it is sent with; None: the sender's own."""


class Exchange(msgspec.Struct, frozen=True):
    """The packets of both sides of a relay; all are sent before any is read."""

    peer: tuple[Said, ...]
    lane: tuple[Said, ...] | None
    """None: the opening alone."""
    kind: PeerKind


_OTHERS: Final = (Credentials(1, 0, 0), Credentials(1, 65534, 65534))
_DESCRIPTORS: Final = (1, 2, 17, 60)
"""With a packet: more than are ever taken, and of a few packets no more than may be in flight."""
_MOST_BYTES: Final = 24_000
"""Most bytes of a packet: eight of them fit into a socket's queue, so that no sender waits for room."""
_DEADLINE: Final = 5.0


class Conversation(Surface[Exchange]):
    """The opening and the relay, over sockets, in the event loop."""

    name = "handshake"
    share = 15

    def __init__(self) -> None:
        self._loop = CaseLoop()
        self._readiness = UserTurns()
        self._closer = ForeignFdCloser()
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def make(self, chance: Random) -> Exchange:
        """A handshake of which some words are changed, left out or said twice."""
        kind = (PeerKind.CLIENT, PeerKind.CLIENT, PeerKind.UI, PeerKind.DEBUGGEE)[index(chance, 4)]
        if chance.random() < 0.5:
            return Exchange(some(chance, [CREDENTIALS, mps_protocol.encode_kind(kind), *COMMANDS[:1]]), None, kind)
        peer = some(chance, [mps_protocol.ACKNOWLEDGEMENT])
        return Exchange(peer, some(chance, [GREETING, HANDOVER]), kind)

    def feed(self, case: Exchange) -> None:
        """Open a connection, or relay one."""
        front, peer = _pair()
        try:
            self._say(peer, case.peer)
            if case.lane is None:
                self._loop.run(self._open(front))
            else:
                back, lane = _pair()
                with lane:
                    self._say(lane, case.lane)
                    self._loop.run(self._relay(front, back, case.kind))
        finally:
            peer.close()

    def close(self) -> None:
        """Close loop and descriptor."""
        self._loop.close()
        os.close(self._null)

    async def _open(self, sock: socket.socket) -> None:
        front, closed = self._stranger(sock)
        try:
            opening = await introduce(front, GREETING, _DEADLINE)
            if opening is not None and (opening.sender.pid != os.getpid() or opening.kind is PeerKind.SERVER):
                raise BrokenPromiseError(f"{opening} was let in")
        except RefusedError as error:
            if error.reason == "silent":
                raise
        finally:
            front.close()
            await closed.wait()

    async def _relay(self, sock: socket.socket, back: socket.socket, kind: PeerKind) -> None:
        front, closed = self._stranger(sock)
        opening = Introduction(Credentials(os.getpid(), os.geteuid(), os.getegid()), kind, GREETING)
        try:
            with PacketStream(back) as stream:
                acknowledger = Acknowledger()
                acknowledger.open()
                try:
                    relay = Relay(front, stream, opening, GREETING, acknowledger, impersonate=False)
                    await relay.run(_greeted, lambda: None, lambda: None)
                finally:
                    acknowledger.close()
        except (RefusedError, LaneGoneError, OtherGreetingError, ProtocolError, OSError):
            # As `LaneHandover` has them; OSError is a packet of the daemon that did not fit.
            return
        finally:
            front.close()
            await closed.wait()

    def _stranger(self, sock: socket.socket) -> tuple[StrangerStream, asyncio.Event]:
        closed = asyncio.Event()
        return StrangerStream(sock, seqpacket.peer(sock), self._readiness, self._closer, closed.set), closed

    def _say(self, sock: socket.socket, words: tuple[Said, ...]) -> None:
        for word in words:
            seqpacket.send(sock, word.data, sender=word.under, fds=(self._null,) * word.descriptors)
        sock.shutdown(socket.SHUT_WR)


def _greeted(word: bytes) -> None:
    mps_protocol.check_greeting(word)


def some(chance: Random, words: Sequence[bytes]) -> tuple[Said, ...]:
    """Some of the words, changed, left out or said twice; some with descriptors or under another name."""
    said = []
    for word in words:
        kind = index(chance, 8)
        data = changed(chance, word, _WORDS)[:_MOST_BYTES] if kind < 2 else word
        descriptors = _DESCRIPTORS[index(chance, len(_DESCRIPTORS))] if chance.random() < 0.1 else 0
        under = _OTHERS[index(chance, 2)] if chance.random() < 0.05 and os.geteuid() == 0 else None
        said += [Said(data, descriptors, under)] * (0 if kind == 2 else 2 if kind == 3 else 1)
    return tuple(said)


def _pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs
