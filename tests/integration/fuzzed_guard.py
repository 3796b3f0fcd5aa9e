"""Surfaces of the fuzzing campaign over real sockets, against a real guard on the simulated stack.

After the cases the guard is the same process, serves a good client, and has as many descriptors as before.
"""

import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec
import zmq

from fault_injection.fuzzing import handshake, vault
from fault_injection.fuzzing.control_api import ControlApi
from fault_injection.fuzzing.mutation import index
from fault_injection.fuzzing.surface import BrokenPromiseError, Surface
from mpsguard.client import Session
from mpsguard.guard.control_api import protocol
from mpsguard.guard.control_api.protocol import Reply
from mpsguard.guard.lanes.mps_protocol import ACKNOWLEDGEMENT, PeerKind, encode_kind
from mpsguard.linux.descriptors import memfd
from mpsguard.linux.sockets import seqpacket
from mpsguard.vault.wire import wire
from mpsguard.vault.wire.region import LeaseRole, RegionLayout
from tests.harness.waiting import PATIENCE
from tests.integration.guarded import Guarded, descriptors, no_more_descriptors
from tests.integration.peer import Peer

C = TypeVar("C")

_GOOD_EACH: Final = 100
"""Hostile cases after which a good client comes by."""
_WARM: Final = 3
"""Good clients before descriptors are counted: what the guard makes once, it has made by then."""


class AgainstGuard(Surface[C], Generic[C]):
    """Owns a guard."""

    share: ClassVar[int] = 1
    patience: ClassVar[float] = 120.0
    """A good client in between has 30 seconds for each step, on a machine that does other things."""
    bounded: ClassVar[bool] = False

    def __init__(self) -> None:
        self._guarded = Guarded(policy="handshake_deadline = 2")
        self._cases = 0
        try:
            self._pid = self._guarded.start()
            for _ in range(_WARM):
                self.good()
            self._guarded.asked("status")
            self._before = descriptors(self._pid)
        except BaseException:
            self._guarded.close()
            raise

    def feed(self, case: C) -> None:
        """Say it, and see from time to time that others are served."""
        self.say(case)
        self._cases += 1
        if self._cases % _GOOD_EACH == 0:
            self.good()

    def say(self, case: C) -> None:
        """Say what a case says, and hear the guard out."""
        raise NotImplementedError

    def good(self) -> None:
        """Do what a client that keeps to the rules does."""
        raise NotImplementedError

    def check(self) -> None:
        """The guard is the same process, serves a good client, and holds nothing of the others'."""
        self.good()
        if self._guarded.guard.poll() is not None:
            raise BrokenPromiseError(f"the guard has ended: {self._guarded.guard.returncode}")
        no_more_descriptors(self._pid, self._before)

    def close(self) -> None:
        """End the guard."""
        self._guarded.close()


def _say(sock: socket.socket, packets: Iterable[tuple[bytes, Sequence[int]]]) -> None:
    """Say it until the guard hangs up."""
    with suppress(BrokenPipeError, ConnectionResetError):
        for data, fds in packets:
            # Where the kernel refuses descriptors, it does so without a byte of the packet.
            with suppress(PermissionError):
                seqpacket.send(sock, data, fds=tuple(fds))
        sock.shutdown(socket.SHUT_WR)


def _hear_all(sock: socket.socket) -> None:
    """Read to the end; TimeoutError if that does not come."""
    with suppress(ConnectionResetError):
        while True:
            packet = seqpacket.receive(sock, wire.MAX_PACKET, max_fds=seqpacket.KERNEL_MAX_FDS)
            for fd in packet.fds:
                os.close(fd)
            if packet.end or not packet.data:
                return


class Handshake(AgainstGuard["handshake.Exchange"]):
    """The public sockets."""

    name = "guard: handshake"

    def __init__(self) -> None:
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        super().__init__()

    def make(self, chance: Random) -> "handshake.Exchange":
        """A client or a command line with some words changed."""
        kind = (PeerKind.CLIENT, PeerKind.UI, PeerKind.DEBUGGEE)[index(chance, 3)]
        command = handshake.COMMANDS[index(chance, len(handshake.COMMANDS))]
        rest = {
            PeerKind.CLIENT: [ACKNOWLEDGEMENT],
            PeerKind.UI: [len(command).to_bytes(8, "little"), command, bytes(8)],
        }.get(kind, [])
        words = handshake.some(chance, [handshake.CREDENTIALS, encode_kind(kind), *rest])
        return handshake.Exchange(words, None, kind)

    def say(self, case: "handshake.Exchange") -> None:
        """Say it all, and hear the guard out."""
        name = "control_privileged" if case.kind is PeerKind.UI else "control"
        with Peer(self._guarded.public, name, deadline=PATIENCE) as peer:
            said = ((word.data, (self._null,) * word.descriptors) for word in case.peer)
            _say(peer.socket, said)
            _hear_all(peer.socket)

    def good(self) -> None:
        """Get a socket to the server."""
        with Peer(self._guarded.public, deadline=PATIENCE) as peer:
            if not peer.connect_as_client():
                raise BrokenPromiseError("a good client got no socket")

    def close(self) -> None:
        """End the guard, and close the descriptor."""
        super().close()
        os.close(self._null)


class Packets(msgspec.Struct, frozen=True):
    """A client's messages with the descriptors that come with each: so many memory files."""

    said: tuple[tuple[bytes, int], ...]


_HELLO: Final = wire.encode(wire.Hello(1, wire.VERSION, "fuzzed", LeaseRole.WRITER, 4711, keep=0.0))
_MEMORY: Final = 4096
_MOST_MEMORY: Final = 3


class VaultSocket(AgainstGuard[Packets]):
    """The vault's socket, with a porter between."""

    name = "guard: vault"

    def __init__(self) -> None:
        self._memory = [os.memfd_create("fuzzed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) for _ in range(_MOST_MEMORY)]
        for fd in self._memory:
            os.ftruncate(fd, _MEMORY)
            memfd.fix_size(fd)
        super().__init__()

    def make(self, chance: Random) -> Packets:
        """A greeting, mostly a right one, and messages behind it."""
        said = [(_HELLO, 0)] if chance.random() < 0.8 else []
        for at in range(1 + index(chance, 5)):
            if chance.random() < 0.2:
                count = 1 + index(chance, _MOST_MEMORY)
                said.append((wire.encode(wire.Create(10 + at, f"r{at}", RegionLayout((_MEMORY,) * count))), 0))
                said.append((wire.encode(wire.Chunks(10 + at, count)), count))
            else:
                count = index(chance, _MOST_MEMORY + 1) if chance.random() < 0.1 else 0
                said.append((vault.packet(chance) or b"\0", count))
        return Packets(tuple(said))

    def say(self, case: Packets) -> None:
        """Say it all, and hear the vault out."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(PATIENCE)
            sock.connect(self._path)
            _say(sock, ((data, self._memory[:count]) for data, count in case.said))
            _hear_all(sock)

    def good(self) -> None:
        """Make a session and release it, after the release of every session that others left there."""
        for left in self._guarded.asked("vault")["sessions"]:
            arguments = {"uid": left["uid"], "session": left["name"], "force": True}
            _ask(self._guarded, protocol.Request(protocol.VERSION, "vault_release", _raw(arguments)))
        with Session("good", socket=self._path, keep=0.0, deadline=PATIENCE) as session:
            session.publish(b"state")
            if session.state() != b"state":
                raise BrokenPromiseError("a good client's state is another")

    def close(self) -> None:
        """End the guard, and close the memory."""
        super().close()
        for fd in self._memory:
            os.close(fd)

    @property
    def _path(self) -> str:
        return str(self._guarded.run_directory / "vault.sock")


_INTERNAL: Final = re.compile(r"[A-Za-z]*(Error|Exception): ")
"""How an answer begins that says which exception a command ended with."""


class Frames(msgspec.Struct, frozen=True):
    """Frames of a message; the last is the request."""

    frames: tuple[bytes, ...]


class ApiSocket(AgainstGuard[Frames]):
    """The control API, with what its commands do."""

    name = "guard: control API"

    def __init__(self) -> None:
        self._requests = ControlApi()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        super().__init__()
        self._socket.connect(f"ipc://{protocol.api_socket(str(self._guarded.run_directory))}")
        self.say(Frames((b"", msgspec.json.encode(protocol.Request(protocol.VERSION, "status")))))
        # This connection among them.
        self._before = descriptors(self._pid)

    def make(self, chance: Random) -> Frames:
        """A request, behind none, one or some other frames."""
        before = tuple(chance.randbytes(index(chance, 20)) for _ in range((1, 1, 0, 3)[index(chance, 4)]))
        return Frames((*before, self._requests.make(chance)))

    def say(self, case: Frames) -> None:
        """Send it; there is one answer, and no command fails of itself."""
        self._socket.send_multipart(case.frames)
        if not self._socket.poll(int(PATIENCE * 1000)):
            raise BrokenPromiseError("no answer")
        *envelope, answer = self._socket.recv_multipart()
        reply = msgspec.json.decode(answer, type=Reply)
        if tuple(envelope) != case.frames[:-1]:
            raise BrokenPromiseError(f"answered to {envelope}")
        if reply.error is not None and reply.error.code == "failed" and _INTERNAL.match(reply.error.message):
            raise BrokenPromiseError(f"answered {reply.error}")

    def good(self) -> None:
        """Ask for the state."""
        self._guarded.asked("status")

    def close(self) -> None:
        """End the guard, and close the socket."""
        self._socket.close()
        self._context.term()
        self._requests.close()
        super().close()


def _raw(arguments: Mapping[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(arguments))


def _ask(guarded: Guarded, request: protocol.Request) -> Reply:
    with zmq.Context() as context, context.socket(zmq.REQ) as asking:
        asking.setsockopt(zmq.LINGER, 0)
        asking.connect(f"ipc://{protocol.api_socket(str(guarded.run_directory))}")
        asking.send(msgspec.json.encode(request))
        if not asking.poll(int(PATIENCE * 1000)):
            raise BrokenPromiseError("no answer")
        return msgspec.json.decode(asking.recv(), type=Reply)


OVER_SOCKETS: Final[Mapping[str, type[Surface[Any]]]] = {
    each.name: each for each in (Handshake, VaultSocket, ApiSocket)
}
"""Those with a guard of their own."""
