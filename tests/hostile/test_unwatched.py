"""Clients that hide their GPU address space from the guard, or take all the places of those that are watched."""

import os
from typing import Any

import pytest

from tests.harness.waiting import wait_for
from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded, Program

pytestmark = [
    pytest.mark.slow(seconds=40, reason="attacks a real guard"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

OTHER = 65533
CLIENT = """
def client():
    sock = connect()
    introduce(sock, 2)
    message, files, _, _ = socket.recv_fds(sock, 64, 4)
    if files:
        sock.send(struct.pack("<i", 0))
    return files

def spaces(count):
    return [os.open("/dev/full", os.O_RDWR | os.O_APPEND) for _ in range(count)]

def plain(count):
    return [os.open("/dev/full", os.O_RDWR) for _ in range(count)]
"""
BEHIND_FILES = """
RLIMIT_NOFILE = 7
assert not ctypes.CDLL(None).setrlimit(RLIMIT_NOFILE, struct.pack("QQ", 5000, 5000))
crowd = [os.open("/dev/null", os.O_RDONLY) for _ in range(4500)]
"""
BEHIND_DECOYS = """
decoy = plain(1)[0]
crowd = [os.dup(decoy) for _ in range(40)]
"""
TWICE = """
first = client()
hidden = spaces(1) + plain(1)
tell("first", served=bool(first))
second = client()
tell("second", served=bool(second))
signal.pause()
"""
AT_ONCE = """
hidden = spaces(1) + plain(1)
socks = [connect() for _ in range(20)]
for sock in socks:
    introduce(sock, 2)
served = [bool(socket.recv_fds(sock, 64, 4)[1]) for sock in socks]
tell("over", served=sum(served))
"""
CROWD = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for number in range(140):
    # One after another: of silent connections a user has few.
    there, come = os.pipe()
    if not os.fork():
        kept = spaces(4)
        client()
        os.write(come, b"x")
        signal.pause()
    os.close(come)
    os.read(there, 1)
    os.close(there)
tell("started")
signal.pause()
"""
ONE = """
kept = spaces(1) + plain(1)
client()
tell("came")
signal.pause()
"""


def start(guarded: Guarded) -> Guarded:
    guarded.process.module = "tests.hostile.with_driver"
    guarded.start()
    return guarded


def watch(guarded: Guarded, program: Program) -> dict[str, Any]:
    watches = guarded.asked("clients")["watches"]
    return next((each for each in watches if each["pid"] == program.pid), {"watched": False, "unwatchable": False})


def test_what_is_behind_thousands_of_files_is_watched() -> None:
    with Guarded() as guarded:
        attacker = attack(start(guarded), CLIENT + BEHIND_FILES + TWICE)
        attacker.expect("second")
        wait_for("an eye on it", lambda: watch(guarded, attacker)["watched"])


def test_what_is_behind_decoys_is_reported_and_served() -> None:
    with Guarded() as guarded:
        attacker = attack(start(guarded), CLIENT + BEHIND_DECOYS + TWICE)
        assert attacker.expect("second")["served"]
        told = wait_for("a word of it", lambda: guarded.events("client_unwatched"))
        assert (told[0]["data"]["pid"], told[0]["domain"]) == (attacker.pid, "default")
        seen = watch(guarded, attacker)
        assert (seen["watched"], seen["unwatchable"]) == (False, True)
        assert "descriptors" in seen["reason"]
        assert guarded.metric("mpsguard_unwatched_clients_total", domain="default") == 1
        assert f"{attacker.pid} cannot be watched" in guarded.ctl("clients").stdout


def test_where_it_is_asked_for_it_is_refused_and_not_ended() -> None:
    with Guarded(domain='unwatched = "refuse"') as guarded:
        attacker = attack(start(guarded), CLIENT + BEHIND_DECOYS + TWICE)
        assert attacker.expect("second") == {"event": "second", "served": False}
        (refused,) = guarded.events("connection_refused")
        assert (refused["data"]["reason"], refused["data"]["pid"]) == ("unwatched", attacker.pid)
        assert guarded.metric("mpsguard_refused_connections_total", reason="unwatched") == 1
        assert attacker.process.poll() is None
        honest = attack(guarded, CLIENT + TWICE, uid=OTHER)
        assert honest.expect("second")["served"]
        wait_for("an eye on it", lambda: watch(guarded, honest)["watched"])


def test_connections_at_once_are_one_first_connection() -> None:
    with Guarded(domain='unwatched = "refuse"') as guarded:
        attacker = attack(start(guarded), CLIENT + BEHIND_DECOYS + AT_ONCE)
        assert attacker.expect("over")["served"] == 1


def test_a_crowd_of_one_user_takes_no_place_of_anothers() -> None:
    with Guarded(policy="max_connections = 4096") as guarded:
        crowd = attack(start(guarded), CLIENT + CROWD)
        crowd.expect("started")
        wait_for("the crowd is there", lambda: len(guarded.clients()) >= 130)
        wait_for("its share is used up", lambda: guarded.events("client_unwatched"))
        victim = attack(guarded, CLIENT + ONE, uid=OTHER)
        victim.expect("came")
        wait_for("an eye on the victim", lambda: watch(guarded, victim)["watched"])
