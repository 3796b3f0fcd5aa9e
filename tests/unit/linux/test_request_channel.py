"""Any interruption ends a request channel, with all descriptors that came; a refusal in time does not."""

import asyncio
import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec
import pytest

from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.async_request_channel import AsyncRequestChannel
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.sockets.request_channel import RequestChannel
from tests.harness.descriptors_left import descriptors_left
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import PATIENCE

IMPATIENT = 0.05
LIMIT = 64
STRANGER = 65534

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    before = open_descriptors()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs
    assert opened_since(before) == []


def decode(data: bytes) -> bytes:
    if data == b"unknown":
        raise msgspec.DecodeError("no such message")
    if data == b"Ctrl-C":
        raise KeyboardInterrupt
    return data


def nothing(theirs: socket.socket) -> None:
    pass


def end(theirs: socket.socket) -> None:
    theirs.close()


def say(text: bytes, fds: int = 0) -> Callable[[socket.socket], None]:
    return lambda theirs: seqpacket.send(theirs, text, fds=(theirs.fileno(),) * fds)


INTERRUPTIONS = [
    pytest.param(nothing, TimeoutError, errno.ETIMEDOUT, id="deadline"),
    pytest.param(end, ConnectionResetError, errno.ECONNRESET, id="end of the peer"),
    pytest.param(say(b"unknown", 2), OSError, errno.EBADMSG, id="unknown message"),
    pytest.param(say(b"x", 3), OSError, errno.EBADMSG, id="too many descriptors"),
    pytest.param(say(b"x", 30), OSError, errno.EMFILE, id="more than are passed"),
    pytest.param(say(b"x" * (LIMIT + 1), 1), OSError, errno.EMFILE, id="too long a message"),
]


@pytest.mark.parametrize("lingers", [False, True])
@pytest.mark.parametrize(("answer", "error", "number"), INTERRUPTIONS)
def test_nothing_is_asked_after_an_interruption(
    pair: Pair, answer: Callable[[socket.socket], None], error: type[OSError], number: int, lingers: bool
) -> None:
    ours, theirs = pair
    with closing(RequestChannel(ours, LIMIT, decode, most_fds=2, lingers=lingers)) as channel:
        answer(theirs)
        with pytest.raises(error) as raised:
            channel.ask(b"?", due=time.monotonic() + IMPATIENT)
        assert raised.value.errno == number
        assert not channel.open
        assert (ours.fileno() >= 0) is lingers
        with pytest.raises(ConnectionResetError):
            channel.ask(b"?", due=time.monotonic() + PATIENCE)


def test_ctrl_c_is_one(pair: Pair) -> None:
    ours, theirs = pair
    with closing(RequestChannel(ours, LIMIT, decode)) as channel:
        say(b"Ctrl-C", 2)(theirs)
        with pytest.raises(KeyboardInterrupt):
            channel.ask(b"?", due=time.monotonic() + PATIENCE)
        assert not channel.open
        assert theirs.recv(LIMIT) == b"?"
        assert theirs.recv(LIMIT) == b""


def test_an_answer_comes_with_its_descriptors(pair: Pair) -> None:
    ours, theirs = pair
    with closing(RequestChannel(ours, LIMIT, decode)) as channel:
        for number in range(3):
            say(b"%d" % number, number)(theirs)
        for number in range(3):
            data, fds = channel.ask(b"?", due=time.monotonic() + PATIENCE)
            assert (data, len(fds)) == (b"%d" % number, number)
            for fd in fds:
                os.close(fd)
        assert channel.open


def test_an_answer_for_which_there_is_no_descriptor_ends_the_channel(pair: Pair) -> None:
    ours, theirs = pair
    with closing(RequestChannel(ours, LIMIT, decode)) as channel:
        say(b"x", 4)(theirs)
        with descriptors_left(2), pytest.raises(OSError, match="too many open files") as raised:
            channel.ask(b"?", due=time.monotonic() + PATIENCE)
        assert (raised.value.errno, channel.open) == (errno.EMFILE, False)


def test_a_peer_that_does_not_read_is_not_waited_for(pair: Pair) -> None:
    ours, _ = pair
    with closing(RequestChannel(ours, LIMIT, decode)) as channel:

        def fill() -> None:
            while True:
                channel.tell(b"!" * LIMIT, due=time.monotonic() + IMPATIENT)

        with pytest.raises(TimeoutError):
            fill()
        assert not channel.open


def test_the_last_words_of_a_peer_are_heard(pair: Pair) -> None:
    ours, theirs = pair
    with closing(RequestChannel(ours, LIMIT, decode)) as channel:
        say(b"goodbye")(theirs)
        theirs.close()
        assert channel.ask(b"?", due=time.monotonic() + PATIENCE) == (b"goodbye", ())
        with pytest.raises(BrokenPipeError):
            channel.tell(b"!", due=time.monotonic() + PATIENCE)


@pytest.mark.parametrize(
    ("answer", "error", "number"),
    [
        pytest.param(nothing, TimeoutError, None, id="deadline"),
        pytest.param(end, ConnectionResetError, errno.ECONNRESET, id="end of the peer"),
        pytest.param(say(b"x", 30), OSError, errno.EMFILE, id="too many descriptors"),
    ],
)
def test_an_interruption_of_an_event_loop_is_the_same(
    pair: Pair, answer: Callable[[socket.socket], None], error: type[OSError], number: int | None
) -> None:
    ours, theirs = pair

    async def body() -> None:
        with closing(AsyncRequestChannel(PacketStream(ours), LIMIT, IMPATIENT)) as channel:
            answer(theirs)
            with pytest.raises(error) as raised:
                await channel.ask(b"?")
            assert (raised.value.errno, channel.open) == (number, False)

    ours.setblocking(False)
    asyncio.run(body())


def test_a_cancelled_request_of_an_event_loop_ends_the_channel(pair: Pair) -> None:
    ours, theirs = pair

    async def body() -> None:
        with closing(AsyncRequestChannel(PacketStream(ours), LIMIT, PATIENCE)) as channel:
            asking = asyncio.create_task(channel.ask(b"?"))
            await asyncio.get_running_loop().sock_recv(theirs, LIMIT)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert not channel.open
            assert theirs.recv(LIMIT) == b""

    ours.setblocking(False)
    theirs.setblocking(False)
    asyncio.run(body())


CROWDED = """
import errno, os, resource, socket, threading, time
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.request_channel import RequestChannel

# As root it would have no limit.
os.setresuid({uid}, {uid}, {uid})
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
pair = lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
(crowd, drain), (ours, theirs) = pair(), pair()
try:
    for _ in range(64):
        seqpacket.send(crowd, b"x", fds=(0,) * 16)
except OSError as error:
    assert error.errno == errno.ETOOMANYREFS, error
else:
    raise SystemExit("the kernel has no limit")
channel = RequestChannel(ours, 64, bytes)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes a user of whom nothing else is in flight")
@pytest.mark.parametrize(
    ("then", "printed"),
    [
        pytest.param(
            """
try:
    channel.ask(b"a request", (0,), due=time.monotonic() + 0.1)
except TimeoutError as error:
    print(error.errno == errno.ETIMEDOUT)
""",
            "True",
            id="until the deadline",
        ),
        pytest.param(
            """
refused = threading.Event()
send = seqpacket.send

def watched(*words, **named):
    try:
        send(*words, **named)
    except OSError:
        refused.set()
        raise

def serve():
    refused.wait()
    drain.close()
    crowd.close()
    send(theirs, seqpacket.receive(theirs, 64).data)

seqpacket.send = watched
threading.Thread(target=serve, daemon=True).start()
print(channel.ask(b"a request", (0,), due=time.monotonic() + 30)[0].decode())
""",
            "a request",
            id="until there is room",
        ),
    ],
)
def test_what_is_in_flight_elsewhere_is_waited_for(then: str, printed: str) -> None:
    """The kernel counts a user's descriptors that were not read yet, over all its processes (ETOOMANYREFS)."""
    script = CROWDED.format(uid=STRANGER) + then
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout.strip(), done.stderr) == (printed, "")
