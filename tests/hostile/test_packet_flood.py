"""Peers that send without end, or never read, neither hold the guard's loop nor keep their places."""

from __future__ import annotations

import os

import pytest

from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded

pytestmark = [
    pytest.mark.slow(seconds=10, reason="attacks a real guard"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

SEND = """
tell("flooding")
# Without a copy of each packet: the kernel is asked to send a thousand at once.
class iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
class msghdr(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint32), ("iov", ctypes.POINTER(iovec)),
                ("iovlen", ctypes.c_size_t), ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t),
                ("flags", ctypes.c_int)]
class mmsghdr(ctypes.Structure):
    _fields_ = [("header", msghdr), ("length", ctypes.c_uint)]
word = ctypes.create_string_buffer(b"x")
one = iovec(ctypes.addressof(word), 1)
many = (mmsghdr * 1024)(*[mmsghdr(msghdr(iov=ctypes.pointer(one), iovlen=1), 0) for _ in range(1024)])
libc = ctypes.CDLL(None)
sock.setblocking(True)
while libc.sendmmsg(sock.fileno(), many, 1024, 0x4000) > 0:
    pass
tell("ended")
signal.pause()
"""
UNREAD = """
sock = connect()
introduce(sock, 4)
sock.settimeout(60)
try:
    while True:
        command(sock, "get_default_client_priority")
except (BrokenPipeError, ConnectionResetError):
    tell("let go")
except TimeoutError:
    tell("still held")
"""
FLOODS = {
    "a client that has its socket": "sock, _ = client()",
    "a command line that has ended": "sock = connect(); introduce(sock, 4); sock.send(struct.pack('<q', 0))",
}


# Longer than a test may last: what ends a flood is not the deadline.
@pytest.mark.parametrize("begin", FLOODS.values(), ids=FLOODS)
def test_a_peer_that_sends_without_end_is_ended(begin: str) -> None:
    with Guarded(domain="multiuser = true", policy="handshake_deadline = 600.0") as guarded:
        guarded.start()
        guarded.client().expect("started")
        flood = attack(guarded, begin + SEND)
        flood.expect("flooding")
        flood.expect("ended")
        other = attack(guarded, "sock, fds = client(); tell('served', fds=len(fds))", uid=65533)
        assert other.expect("served")["fds"] == 1


def test_a_command_line_that_does_not_read_its_replies_is_ended() -> None:
    with Guarded(policy="handshake_deadline = 1.0") as guarded:
        guarded.start()
        attacker = attack(guarded, UNREAD)
        assert attacker.next(90)["event"] == "let go"
