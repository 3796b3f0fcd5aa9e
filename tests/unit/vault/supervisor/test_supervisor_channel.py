"""Both ends of the supervisor channel: what a program says to its supervisor, and the connections that are kept."""

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpsguard.linux.descriptors.io_fence import IoFence
from mpsguard.linux.sockets import seqpacket
from mpsguard.vault.client import kept_connections as connections
from mpsguard.vault.client import supervisor_channel
from mpsguard.vault.client.kept_connections import KeptConnections, NotKeptError, SupersededError
from mpsguard.vault.supervisor.channel import KeptSockets, ProgramChannel
from mpsguard.vault.wire import supervisor_wire as wire
from tests.harness.open_descriptors import open_descriptors, opened_since


class Supervised:
    """A supervisor's end on a thread of its own, and a program's end here."""

    def __init__(self, most: int = 8) -> None:
        self.kept = KeptSockets(most)
        self.fence = IoFence()
        self.heard: list[wire.Ready | wire.Promoted | wire.Take | wire.Fence] = []
        self.channel = ProgramChannel(self.kept, self._hear)
        self.channel.serves = True
        self.raw = self.channel.theirs.dup()
        self.program = supervisor_channel.SupervisorChannel(self.channel.theirs)
        self.connections = KeptConnections(self.program)
        self._woken, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _hear(self, channel: ProgramChannel, message: wire.Ready | wire.Promoted | wire.Take | wire.Fence) -> None:
        self.heard.append(message)
        if isinstance(message, wire.Take):
            channel.give_all(message)
        elif isinstance(message, wire.Fence):
            fence_pass = self.fence.new_pass()
            channel.give_fence_pass(message, fence_pass)
            os.close(fence_pass)

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([self.channel.fileno(), self._woken], [], [])
            if self._woken in ready or not self.channel.read():
                break
        self.channel.close()

    def stop(self) -> None:
        """The supervisor ends."""
        os.write(self._wake, b"!")
        self._thread.join()

    def close(self) -> None:
        self.stop()
        self.program.close()
        self.raw.close()
        self.kept.close()
        self.fence.close()
        os.close(self._wake)
        os.close(self._woken)


@pytest.fixture
def supervised() -> Iterator[Supervised]:
    before = open_descriptors()
    made = Supervised()
    yield made
    made.close()
    assert opened_since(before) == []


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def connected(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    connecting = socket.create_connection(listener.getsockname())
    return connecting, listener.accept()[0]


def test_a_connection_that_is_kept_outlives_the_end_of_its_process(
    supervised: Supervised, listener: socket.socket
) -> None:
    connecting, accepted = connected(listener)
    with connecting:
        supervised.connections.keep(accepted, 7)
        accepted.close()
        taken = supervised.connections.take()
        assert taken.keys() == {7}
        with taken[7] as again:
            again.sendall(b"on it goes")
            assert connecting.recv(100) == b"on it goes"
        supervised.connections.drop(7)
        assert connecting.recv(1) == b""
        assert supervised.connections.take() == {}


def test_a_connection_is_kept_before_the_program_has_it(supervised: Supervised, listener: socket.socket) -> None:
    assert supervised.connections.accept(listener, 1) is None
    with socket.create_connection(listener.getsockname()) as connecting:
        select.select([listener], [], [])
        accepted = supervised.connections.accept(listener, 1)
        assert accepted is not None
        with accepted:
            assert accepted.getpeername() == connecting.getsockname()
            assert accepted.gettimeout() is None
        (copy,) = supervised.connections.take().values()
        with copy:
            assert copy.getpeername() == connecting.getsockname()


def test_many_are_given_in_order_and_with_their_tags(listener: socket.socket) -> None:
    before = open_descriptors()
    supervised = Supervised(most=600)
    pairs = [connected(listener) for _ in range(300)]
    for tag, (_, accepted) in enumerate(pairs):
        supervised.connections.keep(accepted, tag)
        accepted.close()
    taken = supervised.connections.take()
    assert {tag: sock.getpeername() for tag, sock in taken.items()} == {
        tag: connecting.getsockname() for tag, (connecting, _) in enumerate(pairs)
    }
    for sock in taken.values():
        sock.close()
    for connecting, _ in pairs:
        connecting.close()
    supervised.close()
    assert opened_since(before) == []


def test_what_is_not_kept_is_said_why(supervised: Supervised, listener: socket.socket) -> None:
    connecting, accepted = connected(listener)
    with connecting, accepted:
        supervised.connections.keep(accepted, 0)
        with pytest.raises(NotKeptError, match="0"):
            supervised.connections.keep(accepted, 0)
        for tag in range(1, 8):
            supervised.connections.keep(accepted, tag)
        with pytest.raises(NotKeptError):
            supervised.connections.keep(accepted, 8)
        with pytest.raises(NotKeptError):
            supervised.connections.accept(listener, 8)
        supervised.connections.drop(3)
        with pytest.raises(NotKeptError):
            supervised.connections.keep(listener, 3)
        supervised.connections.keep(accepted, 3)
        for tag in (-1, 1 << 63):
            with pytest.raises(ValueError, match="tag"):
                supervised.connections.keep(accepted, tag)
        with pytest.raises(TypeError, match="tag: 'c1' is not a whole number"):
            supervised.connections.keep(accepted, "c1")  # type: ignore[arg-type]


def test_what_is_no_socket_is_refused_and_nothing_of_it_is_left(supervised: Supervised) -> None:
    """The fixture counts."""
    reading, writing = os.pipe2(os.O_NONBLOCK)
    for request in (wire.Keep(0, 1), wire.Accept(0, 1)):
        with pytest.raises(NotKeptError):
            supervised.program.ask(request, (reading,))
    os.close(reading)
    os.close(writing)


def test_a_program_that_has_ended_before_the_answer_gets_none() -> None:
    """Its children may have the other end still: the answer may be due, and no reader be left."""
    ours = ProgramChannel(KeptSockets(8), lambda _channel, _message: None)
    with ours.theirs.dup():
        ours.close()
        ours.give_all(wire.Take(1))
        ours.refuse(2, "another process is the active one")


def test_a_process_that_is_not_active_keeps_and_drops_nothing(supervised: Supervised, listener: socket.socket) -> None:
    connecting, accepted = connected(listener)
    with connecting, accepted:
        supervised.connections.keep(accepted, 1)
        supervised.channel.serves = False
        with pytest.raises(NotKeptError):
            supervised.connections.keep(accepted, 2)
        supervised.connections.drop(1)
        taken = supervised.connections.take()
        assert taken.keys() == {1}
        taken[1].close()


def test_the_supervisor_hears_what_it_is_told_in_order(supervised: Supervised) -> None:
    supervised.connections.ready()
    supervised.program.send(wire.Promoted())
    supervised.connections.take()
    assert [type(message) for message in supervised.heard] == [wire.Ready, wire.Promoted, wire.Take]


def test_without_a_supervisor_nothing_happens_and_nothing_fails(listener: socket.socket) -> None:
    alone = KeptConnections(None)
    assert not alone.kept
    connecting, accepted = connected(listener)
    with connecting, accepted:
        alone.keep(accepted, 1)
        alone.drop(1)
        alone.ready()
        assert alone.take() == {}
    with socket.create_connection(listener.getsockname()) as another:
        select.select([listener], [], [])
        alone_accepted = alone.accept(listener, 1)
        assert alone_accepted is not None
        with alone_accepted:
            assert alone_accepted.getpeername() == another.getsockname()
    assert alone.accept(listener, 1) is None


def test_the_end_of_the_supervisor_is_no_error(supervised: Supervised, listener: socket.socket) -> None:
    connecting, accepted = connected(listener)
    with connecting, accepted:
        supervised.connections.keep(accepted, 1)
        before = supervised.connections.kept
        supervised.stop()
        supervised.connections.keep(accepted, 2)
        assert (before, supervised.connections.kept) == (True, False)
        supervised.connections.drop(2)
        assert supervised.connections.take() == {}


def test_a_superseded_program_uses_its_connections_no_more(supervised: Supervised) -> None:
    connections = [KeptConnections(supervised.program, io_fence=True) for _ in range(2)]
    with connections[0].in_use(), connections[1].in_use():
        assert not supervised.fence.shut()
    assert supervised.fence.shut()
    for each in connections:
        with pytest.raises(SupersededError), each.in_use():
            raise AssertionError("it got in")
    assert sum(isinstance(each, wire.Fence) for each in supervised.heard) == 1


def test_a_program_without_a_fence_has_nothing_to_be_shut_out_of(supervised: Supervised) -> None:
    with supervised.connections.in_use():
        assert supervised.fence.shut()
    assert not supervised.heard


def test_connections_are_used_on_when_the_supervisor_has_ended(supervised: Supervised) -> None:
    connections = KeptConnections(supervised.program, io_fence=True)
    supervised.stop()
    connections.drop(1)
    assert not connections.kept
    with connections.in_use():
        pass


def test_without_a_supervisor_connections_are_simply_used(supervised: Supervised) -> None:
    supervised.stop()
    for channel in (None, supervised.program):
        with KeptConnections(channel, io_fence=True).in_use():
            pass


@pytest.mark.parametrize("message", [b"", b"nonsense", b"\xc1", wire.encode(wire.Done(1))])
def test_a_process_that_speaks_another_language_is_not_listened_to(supervised: Supervised, message: bytes) -> None:
    supervised.raw.send(message)
    assert supervised.raw.recv(1) == b""
    assert supervised.heard == []


def test_unrequested_descriptors_are_closed(supervised: Supervised) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        for message in (wire.Ready(), wire.Drop(1), wire.Take(0)):
            seqpacket.send(supervised.raw, wire.encode(message), fds=(theirs.fileno(), theirs.fileno()))
        seqpacket.send(supervised.raw, wire.encode(wire.Keep(9, 1)), fds=(theirs.fileno(), theirs.fileno()))
        supervised.connections.take()
        theirs.close()
        assert ours.recv(1) == b"", "somebody still has the other end"


def test_a_child_made_by_fork_has_no_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with told:
        number = theirs.detach()
        monkeypatch.setenv(wire.VARIABLE, str(number))
        monkeypatch.setattr(connections, "_channels", {})
        assert connections.KeptConnections.from_environment().kept
        assert not os.get_inheritable(number)
        assert wire.VARIABLE not in os.environ
        connections.tell_ready()
        assert wire.decode_request(told.recv(100)) == wire.Ready()
        assert in_a_child(lambda: not KeptConnections.from_environment().kept)
        connections.tell_ready(promoted=True)
        assert wire.decode_request(told.recv(100)) == wire.Promoted()
        for kept in connections._channels.values():
            assert kept is not None
            kept.close()


def in_a_child(look: Callable[[], bool]) -> bool:
    """What a child made by fork sees."""
    pid = os.fork()
    if pid == 0:
        os._exit(not look())
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("value", ["", "x", "99999", "-1", "0", "9" * 30, "9" * 5000])
def test_a_variable_that_names_no_supervisor_channel_is_no_error(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(wire.VARIABLE, value)
    assert supervisor_channel.SupervisorChannel.from_environment() is None


def test_a_connection_to_a_vault_is_no_supervisor_channel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It may have the number by chance, in a program that inherited the variable, and not the descriptor."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(tmp_path / "vault.sock"))
        listening.listen()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connected:
            connected.connect(str(tmp_path / "vault.sock"))
            monkeypatch.setenv(wire.VARIABLE, str(connected.fileno()))
            assert supervisor_channel.SupervisorChannel.from_environment() is None
            connected.getpeername()


def test_a_process_that_dies_with_an_answer_unread_is_heard_to_its_last_word() -> None:
    heard: list[object] = []

    def hear(of: ProgramChannel, message: wire.Ready | wire.Promoted | wire.Take | wire.Fence) -> None:
        heard.append(message)
        if isinstance(message, wire.Fence):
            of.refuse(message.id, "none is given here")

    supervisor = ProgramChannel(KeptSockets(), hear)
    try:
        seqpacket.send(supervisor.theirs, wire.encode(wire.Fence(1)))
        assert supervisor.read()
        seqpacket.send(supervisor.theirs, wire.encode(wire.Promoted()))
        supervisor.theirs.close()
        assert not supervisor.read()
    finally:
        supervisor.close()
    assert heard == [wire.Fence(1), wire.Promoted()]


@pytest.mark.parametrize("spoilt", [b"take", b"id"])
def test_a_word_that_is_no_text_ends_the_channel_and_not_the_supervisor(spoilt: bytes) -> None:
    supervisor = ProgramChannel(KeptSockets(), lambda _, __: None)
    try:
        seqpacket.send(supervisor.theirs, wire.encode(wire.Take(1)).replace(spoilt, b"\xff" * len(spoilt)))
        assert not supervisor.read()
    finally:
        supervisor.close()


def test_an_answer_that_is_no_text_is_as_good_as_none() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = supervisor_channel.SupervisorChannel(ours)
    with theirs:
        seqpacket.send(theirs, wire.encode(wire.Refused(1, "QQ")).replace(b"QQ", b"\xff\xfe"))
        with pytest.raises(supervisor_channel.SupervisorGoneError):
            program.ask(wire.Keep(0, 1), ())
    program.close()
