"""Hostile and broken peers: each is closed, counted, bounded, and delays no other client."""

import os
import resource
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from mpsguard.linux.sockets import seqpacket
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, descriptors, no_more_descriptors
from tests.integration.peer import CLIENT, CREDENTIALS, UI, Peer

pytestmark = pytest.mark.slow(seconds=90, reason="floods a guard")

REFUSED = "mpsguard_refused_connections_total"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Guarded(policy="handshake_deadline = 2") as running:
        running.start()
        running.client().expect("started")
        yield running


def greeted(guarded: Guarded, name: str = "control") -> Peer:
    peer = Peer(guarded.public, name)
    assert peer.hear()[0] == b"OUTBHELL\0"
    return peer


def introduced(guarded: Guarded) -> Peer:
    peer = greeted(guarded)
    peer.say(CREDENTIALS)
    return peer


def as_client(guarded: Guarded) -> Peer:
    peer = introduced(guarded)
    peer.say(CLIENT)
    return peer


def as_ui(guarded: Guarded) -> Peer:
    peer = greeted(guarded, "control_privileged")
    peer.say(CREDENTIALS)
    peer.say(UI)
    return peer


BAD: list[tuple[str, Callable[[Guarded], Peer], Callable[[Peer], None]]] = [
    ("garbage", greeted, lambda peer: peer.say(b"GET / HTTP/1.1")),
    ("garbage", greeted, lambda peer: peer.say(b"OUTCCRED\0")),
    ("garbage", greeted, lambda peer: peer.say(b"")),
    ("truncated", greeted, lambda peer: peer.say(b"x" * 65)),
    ("truncated", greeted, lambda peer: peer.say(b"x" * 100_000)),
    ("descriptors", greeted, lambda peer: peer.say_with_descriptors(CREDENTIALS, 1)),
    ("descriptors", introduced, lambda peer: peer.say_with_descriptors(CLIENT, 5)),
    ("descriptors", introduced, lambda peer: peer.say_with_descriptors(CLIENT, 250)),
    ("kind", introduced, lambda peer: peer.say(struct.pack("<i", 1))),
    ("kind", introduced, lambda peer: peer.say(struct.pack("<i", 99))),
    ("kind", introduced, lambda peer: peer.say(b"\2\0\0")),
    ("garbage", as_ui, lambda peer: peer.say(struct.pack("<q", -1))),
    ("garbage", as_ui, lambda peer: peer.say(struct.pack("<q", 1 << 62))),
    ("garbage", as_ui, lambda peer: peer.say(b"ps\n\0")),
    ("garbage", as_ui, lambda peer: peer.say_all(struct.pack("<q", 6), b"ps\nps\n\0")),
    ("truncated", as_ui, lambda peer: peer.say_all(struct.pack("<q", 100), b"x" * 100_000)),
    ("descriptors", as_ui, lambda peer: peer.say_with_descriptors(struct.pack("<q", 4), 1)),
    ("silent", greeted, lambda _: None),
    ("silent", introduced, lambda _: None),
    ("silent", as_ui, lambda peer: peer.say(struct.pack("<q", 4))),
    ("hung_up", introduced, lambda peer: peer.socket.shutdown(socket.SHUT_RDWR)),
]


@pytest.mark.parametrize(("reason", "begin", "misbehave"), BAD, ids=[f"{n}-{bad[0]}" for n, bad in enumerate(BAD)])
def test_what_breaks_the_protocol_is_closed_and_counted(
    guarded: Guarded, reason: str, begin: Callable[[Guarded], Peer], misbehave: Callable[[Peer], None]
) -> None:
    before, open_before = guarded.metric(REFUSED, reason=reason), descriptors(guarded.guard.pid)
    with begin(guarded) as peer:
        if reason == "descriptors" and seqpacket.kernel_refuses_descriptors():
            with pytest.raises(PermissionError):
                misbehave(peer)
            return
        misbehave(peer)
        assert peer.ended()
    wait_for("counted", lambda: guarded.metric(REFUSED, reason=reason) == before + 1)
    no_more_descriptors(guarded.guard.pid, open_before)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only a privileged peer can send credentials that are not its own")
def test_credentials_that_are_not_the_peers_are_refused(guarded: Guarded) -> None:
    before = guarded.metric(REFUSED, reason="credentials")
    with greeted(guarded) as peer:
        peer.say_as(CREDENTIALS, os.getppid(), 0, 0)
        assert peer.ended()
    with introduced(guarded) as peer:
        peer.say_as(CLIENT, os.getpid(), 65534, 0)
        assert peer.ended()
    assert guarded.metric(REFUSED, reason="credentials") == before + 2


def test_a_client_that_dies_mid_handshake_leaves_nothing(guarded: Guarded) -> None:
    before = descriptors(guarded.guard.pid)
    for begin in (greeted, introduced, as_client, as_ui):
        for _ in range(20):
            begin(guarded).socket.close()
    no_more_descriptors(guarded.guard.pid, before)
    assert guarded.ctl("status").returncode == 0


@pytest.mark.parametrize("handshakes", [2_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_handshakes_leave_no_descriptor_and_little_memory(guarded: Guarded, handshakes: int) -> None:
    pid = guarded.guard.pid
    for _ in range(500):
        with Peer(guarded.public) as peer:
            assert peer.connect_as_client()
    before, memory = descriptors(pid), resident(pid)
    for _ in range(handshakes):
        with Peer(guarded.public) as peer:
            assert peer.connect_as_client()
    no_more_descriptors(pid, before)
    assert resident(pid) - memory < 16 << 20


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def test_a_thousand_hostile_connections_hold_up_no_good_client() -> None:
    """Fifty good clients, each served while the thousand that came before it still are not done.

    The deadline of the thousand is far beyond a good one's patience: were any of them waited for, it would be seen.
    Before each good one twenty send garbage, are ended, and come again; each is one refusal, and costs no other its
    connection.
    """
    with Guarded(policy="handshake_deadline = 3600") as guarded:
        guarded.start()
        guarded.client().expect("started")
        kinds = (lambda guarded: Peer(guarded.public), greeted, introduced, as_client, as_ui)
        hostile: list[Peer] = []
        try:
            hostile.extend(kinds[index % len(kinds)](guarded) for index in range(1000))
            garbage = 0
            for turn in range(50):
                for index in range(turn % 50, 1000, 50):
                    peer = hostile[index]
                    speaks = index % len(kinds) in (0, 1)
                    if speaks:
                        peer.say(b"\xff" * 32)
                        garbage += 1
                        assert peer.ended()
                    peer.socket.close()
                    hostile[index] = kinds[index % len(kinds)](guarded)
                with Peer(guarded.public) as good:
                    assert good.connect_as_client()
            assert guarded.metric(REFUSED, reason="garbage") == garbage
            assert guarded.metric(REFUSED, reason="evicted") == 0
            assert all(still_open(peer) for peer in hostile)
        finally:
            for peer in hostile:
                peer.socket.close()
        wait_for("the thousand are gone", lambda: guarded.metric("mpsguard_open_connections") < 10)


def still_open(peer: Peer) -> bool:
    """Whether the guard has not ended the connection, whatever it has said on it."""
    peer.socket.setblocking(False)
    while True:
        try:
            data, fds = peer.hear()
        except BlockingIOError:
            return True
        for fd in fds:
            os.close(fd)
        if not data:
            return False
