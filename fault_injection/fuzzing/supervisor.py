"""The supervisor channel: what a program says to `mpsguard run`, with descriptors of all kinds."""

import os
import socket
from contextlib import suppress
from random import Random
from typing import Any, Final

import msgspec

from fault_injection.fuzzing.mutation import (
    changed_packet,
    index,
)
from fault_injection.fuzzing.surface import BrokenPromiseError, Surface
from mpsguard.linux.descriptors.io_fence import IoFence
from mpsguard.linux.sockets import seqpacket
from mpsguard.vault.supervisor.channel import KeptSockets, ProgramChannel
from mpsguard.vault.wire import supervisor_wire as wire

_MESSAGES: Final = (
    wire.Ready(),
    wire.Promoted(),
    wire.Keep(1, 7),
    wire.Accept(2, 8),
    wire.Drop(7),
    wire.Take(3),
    wire.Fence(4),
    wire.Keep(5, (1 << 63) - 1),
)
_ANSWERS: Final = (wire.Done(1), wire.Given(2, (1, 2, 3), more=True), wire.Refused(3, "no"))
_PLAIN: Final[tuple[dict[str, Any], ...]] = tuple(msgspec.to_builtins(each) for each in (*_MESSAGES, *_ANSWERS))
_PACKETS: Final = tuple(wire.encode(each) for each in (*_MESSAGES, *_ANSWERS))
_FIELDS: Final = tuple(sorted({name for each in _PLAIN for name in each}))


def _packet(chance: Random) -> bytes:
    data = changed_packet(chance, _PLAIN, _PACKETS, _FIELDS, as_messages=10, deepest=wire.MAX_PACKET)
    return data[: wire.MAX_PACKET + 100]


class Messages(Surface[bytes]):
    """The decoders of both directions."""

    name = "supervisor messages"
    share = 100

    def make(self, chance: Random) -> bytes:
        """A packet."""
        return _packet(chance)

    def feed(self, case: bytes) -> None:
        """Decode it as the supervisor and as its program do."""
        with suppress(msgspec.DecodeError):
            wire.decode_request(case)
        with suppress(msgspec.DecodeError):
            wire.decode_answer(case)


class Said(msgspec.Struct, frozen=True):
    """A packet, and the descriptors that come with it: which of `Channel`'s, by their places."""

    data: bytes
    descriptors: tuple[int, ...]


class Channel(Surface[tuple[Said, ...]]):
    """The supervisor's end itself, over a socket."""

    name = "supervisor"
    share = 25

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        listener = self._owned(socket.socket(socket.AF_INET))
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        blocking = self._owned(socket.socket(socket.AF_INET))
        blocking.bind(("127.0.0.1", 0))
        blocking.listen()
        streams = [self._owned(one) for one in socket.socketpair()]
        packets = [self._owned(one) for one in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
        unconnected = self._owned(socket.socket(socket.AF_INET))
        self._pipe = os.pipe()
        self._memory = os.memfd_create("fuzzed", os.MFD_CLOEXEC)
        sockets = (listener, blocking, *streams, packets[0], unconnected)
        self._fds = (*(one.fileno() for one in sockets), *self._pipe, self._memory)

    def make(self, chance: Random) -> tuple[Said, ...]:
        """One to four messages, half of them as they should be."""
        said = []
        for _ in range(1 + index(chance, 4)):
            data = _PACKETS[index(chance, len(_MESSAGES))] if chance.random() < 0.5 else _packet(chance)
            count = (0, 1, 1, 1, 1, 2, 5)[index(chance, 7)]
            said.append(Said(data or b"\0", tuple(index(chance, len(self._fds)) for _ in range(count))))
        return tuple(said)

    def feed(self, case: tuple[Said, ...]) -> None:
        """Say it all, have it heard, and read the answers."""
        kept, fence = KeptSockets(4), IoFence()

        def heard(channel: ProgramChannel, message: wire.Ready | wire.Promoted | wire.Take | wire.Fence) -> None:
            if isinstance(message, wire.Take):
                channel.give_all(message)
            elif isinstance(message, wire.Fence):
                fence_pass = fence.new_pass()
                try:
                    channel.give_fence_pass(message, fence_pass)
                finally:
                    os.close(fence_pass)

        channel = ProgramChannel(kept, heard)
        channel.serves = True
        try:
            for said in case:
                seqpacket.send(channel.theirs, said.data, fds=tuple(self._fds[place] for place in said.descriptors))
            channel.read()
            self._hear_answers(channel.theirs)
        finally:
            channel.close()
            kept.close()
            fence.close()

    def close(self) -> None:
        """Close all descriptors."""
        for one in self._sockets:
            one.close()
        for fd in (*self._pipe, self._memory):
            os.close(fd)

    def _hear_answers(self, theirs: socket.socket) -> None:
        theirs.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                packet = seqpacket.receive(theirs, wire.MAX_PACKET, max_fds=seqpacket.KERNEL_MAX_FDS)
                for fd in packet.fds:
                    os.close(fd)
                if packet.end:
                    return
                answer = wire.decode_answer(packet.data)
                if isinstance(answer, wire.Given) and len(answer.tags) != len(packet.fds):
                    raise BrokenPromiseError(f"{answer} with {len(packet.fds)} descriptors")

    def _owned(self, sock: socket.socket) -> socket.socket:
        self._sockets.append(sock)
        return sock
