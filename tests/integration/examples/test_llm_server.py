"""The token server's connections over takeovers: real sockets, the real channel, and no model.

Tokens come from `PureTokens`, a stand-in for the model, which computes them with arithmetic from the same arguments. A
process that dies is an exception in the middle of the server's work, after which its descriptors are closed.
"""

import json
import random
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import pytest

from examples.llm_server import http
from examples.llm_server import state as forward
from examples.llm_server.server import Server
from examples.llm_server.state import Request, State
from mpsguard.vault.client.kept_connections import KeptConnections
from mpsguard.vault.client.supervisor_channel import SupervisorChannel
from mpsguard.vault.supervisor.channel import KeptSockets, ProgramChannel
from mpsguard.vault.wire import supervisor_wire as wire
from tests.harness.waiting import PATIENCE

SLOTS, VOCABULARY, LENGTH = 3, 512, 200


class Death(BaseException):
    """Stands for the end of the process."""


class PureTokens:
    """A stand-in for the model and its session: tokens by arithmetic, and a published state that outlives it."""

    def __init__(self, published: State, dies_at: int, *, before: bool) -> None:
        self.state = published
        self._left = dies_at
        self._before = before

    def admit(self, request: Request) -> None:
        self._publish(forward.admitted(self.state, request))

    def forget(self, ids: Sequence[int]) -> None:
        if ids:
            self._publish(forward.without(self.state, ids))

    def step(self) -> Mapping[int, int]:
        tokens = {r.id: token(r) for r in forward.to_compute(self.state)}
        if tokens:
            self._publish(forward.advanced(self.state, tokens))
        return tokens

    def _publish(self, state: State) -> None:
        self._left -= 1
        if self._left == 0 and self._before:
            raise Death
        self.state = forward.decode(forward.encode(state))
        if self._left == 0:
            raise Death


def token(request: Request) -> int:
    return hash((request.prompt, request.tokens, request.seed)) % VOCABULARY


@dataclass
class Supervisor:
    """What `mpsguard run --standby` does for connections, on a thread: its real channel and what it keeps."""

    kept: KeptSockets = field(default_factory=KeptSockets)

    @contextmanager
    def program(self) -> Iterator[KeptConnections]:
        def heard(channel: ProgramChannel, request: wire.Ready | wire.Promoted | wire.Take | wire.Fence) -> None:
            if isinstance(request, wire.Take):
                channel.give_all(request)
            elif isinstance(request, wire.Fence):
                channel.refuse(request.id, "deaths are exceptions here: nobody is superseded")

        channel = ProgramChannel(self.kept, heard)
        channel.serves = True
        ours = SupervisorChannel(socket.socket(fileno=channel.theirs.detach()))
        over = threading.Event()

        def listen() -> None:
            while not over.wait(0.0005):
                if not channel.read():
                    return

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield KeptConnections(ours)
        finally:
            ours.close()
            over.set()
            thread.join()
            channel.read_rest()
            channel.close()


@dataclass
class Client:
    """Asks for tokens on a thread, and keeps what it is answered."""

    address: tuple[str, int]
    number: int
    in_pieces: bool = False
    got: bytes = b""
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.wanted = http.Wanted((self.number % VOCABULARY, 7), 1 + self.number * 13 % 40, self.number)
        self.thread = threading.Thread(target=self._ask)
        self.thread.start()

    def _ask(self) -> None:
        body = msgspec.json.encode(self.wanted)
        data = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        try:
            with socket.create_connection(self.address, timeout=PATIENCE) as sock:
                for part in (data[:9], data[9:50], data[50:]) if self.in_pieces else (data,):
                    sock.sendall(part)
                while more := sock.recv(4096):
                    self.got += more
        except OSError as error:
            self.error = error

    @property
    def expected(self) -> bytes:
        request = Request(0, 0, self.wanted.tokens, self.wanted.max_tokens, self.wanted.seed)
        while not request.over:
            request = msgspec.structs.replace(request, tokens=(*request.tokens, token(request)))
        return http.answer(request)


def serve_through(deaths: Sequence[tuple[int, bool]], clients: Sequence[Client], listener: socket.socket) -> State:
    """One server after the other, each dying at its publication number so and so; the last one stays."""
    supervisor = Supervisor()
    state = State()
    for dies_at, before in (*deaths, (0, False)):
        work = PureTokens(state, dies_at, before=before)
        with supervisor.program() as connections:
            server: Server | None = None
            watcher = threading.Thread(target=lambda: None)
            try:
                server = Server(work, listener, connections, slots=SLOTS, vocabulary=VOCABULARY, length=LENGTH)
                watcher = threading.Thread(target=stop_when_answered, args=(server, clients))
                watcher.start()
                server.run()
            except Death:
                pass
            finally:
                if server is not None:
                    server.close()
        state = forward.after_failover(work.state)
        state = msgspec.structs.replace(
            state, requests=tuple(msgspec.structs.replace(r, deaths=0) for r in state.requests)
        )
        if watcher.ident is not None and not any(client.thread.is_alive() for client in clients):
            watcher.join()
            break
    assert [tag for tag, _ in supervisor.kept.all()] == []
    supervisor.kept.close()
    return state


def stop_when_answered(server: Server, clients: Sequence[Client]) -> None:
    for client in clients:
        client.thread.join(PATIENCE)
    server.stop()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as heard:
        yield heard


@pytest.mark.parametrize("seed", range(25))
def test_clients_see_every_byte_once_whenever_processes_die(listener: socket.socket, seed: int) -> None:
    chance = random.Random(seed)
    address = listener.getsockname()
    clients = [Client(address, seed * 100 + number, in_pieces=bool(number % 2)) for number in range(7)]
    deaths = [(chance.randrange(1, 25), chance.random() < 0.5) for _ in range(chance.randrange(8))]
    serve_through(deaths, clients, listener)
    assert [client.error for client in clients] == [None] * 7
    for client in clients:
        assert client.got == client.expected


def ask(address: tuple[str, int], data: bytes) -> bytes:
    with socket.create_connection(address, timeout=PATIENCE) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        got = b""
        while more := sock.recv(4096):
            got += more
        return got


@contextmanager
def served(listener: socket.socket) -> Iterator[PureTokens]:
    work = PureTokens(State(), 0, before=False)
    server = Server(work, listener, KeptConnections(None), slots=SLOTS, vocabulary=VOCABULARY, length=LENGTH)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield work
    finally:
        server.stop()
        thread.join()
        server.close()


def test_a_peer_that_goes_away_or_asks_nonsense_harms_no_other(listener: socket.socket) -> None:
    address = listener.getsockname()
    with served(listener) as work:
        assert b" 400 " in ask(address, b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        assert b" 404 " in ask(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            ask(address, b"POST /gen")
        body = json.dumps({"prompt": "x", "max_tokens": 150}).encode()
        rude = socket.create_connection(address, timeout=PATIENCE)
        rude.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        rude.close()
        client = Client(address, 5)
        client.thread.join(PATIENCE)
        assert client.got == client.expected
        deadline = threading.Event()
        while work.state.requests:
            assert not deadline.wait(0.01)
    assert work.state.requests == ()
