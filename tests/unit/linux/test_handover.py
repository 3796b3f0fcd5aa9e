"""A program gets what is handed over to it, and nothing else; whether it could be started is known."""

import errno
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from mpsguard.linux.systemd import handover
from mpsguard.linux.systemd.handover import Handover
from tests.harness.open_descriptors import open_descriptors, opened_since

TELLS = """
import json, os, sys
def target(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None
status = open("/proc/self/status").read()
masks = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith("Sig")}
with open(sys.argv[1], "w") as file:
    seen = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and fd != file.fileno()]
    json.dump({"pid": os.getpid(), "group": os.getpgid(0), "masks": masks, "environment": dict(os.environ),
        "fds": {fd: target(fd) for fd in seen if target(fd)}}, file)
"""


def told(path: Path, given: Handover, *, own_group: bool = False) -> dict[str, Any]:
    pid = handover.start([sys.executable, "-c", TELLS, str(path)], {"A": "b"}, given, own_group=own_group)
    assert os.waitpid(pid, 0)[1] == 0
    seen: dict[str, Any] = json.loads(path.read_text())
    assert seen["pid"] == pid
    return seen


def inherited(path: Path) -> dict[str, str]:
    """Return what a program has without anything handed over: the caller of the tests may leave some open."""
    fds: dict[str, str] = told(path, Handover({}, {}))["fds"]
    return fds


def test_listening_sockets_are_handed_over_as_systemd_does(tmp_path: Path) -> None:
    before = open_descriptors()
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        links = [os.readlink(f"/proc/self/fd/{sock.fileno()}") for sock in (one, two)]
        seen = told(tmp_path / "seen", Handover({one.fileno(): "a", two.fileno(): "b"}, {}))
        assert seen["environment"]["LISTEN_PID"] == str(seen["pid"])
        assert seen["environment"]["LISTEN_FDS"] == "2"
        assert seen["environment"]["LISTEN_FDNAMES"] == "a:b"
        assert [seen["fds"]["3"], seen["fds"]["4"]] == links
        assert sum(target in links for target in seen["fds"].values()) == 2
    assert opened_since(before) == []


def test_a_private_descriptor_is_named_by_its_variable(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            link = os.readlink(f"/proc/self/fd/{theirs.fileno()}")
            seen = told(tmp_path / "seen", Handover({listener.fileno(): "x"}, {"THEIRS": theirs.fileno()}))
            assert seen["fds"][seen["environment"]["THEIRS"]] == link
            assert list(seen["fds"].values()).count(link) == 1


def test_without_anything_to_hand_over_there_is_nothing(tmp_path: Path) -> None:
    seen = told(tmp_path / "seen", Handover({}, {}))
    assert not [name for name in seen["environment"] if name.startswith("LISTEN")]
    with (tmp_path / "secret").open("w"):
        assert seen["fds"] == inherited(tmp_path / "again")


def test_signals_are_as_for_any_program_and_those_ignored_stay_so(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None), signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        masks = told(tmp_path / "seen", Handover({}, {}))["masks"]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGUSR2, before[1])
    # Python ignores SIGPIPE and SIGXFSZ in the program again, when it has started.
    ignored = int(masks["SigIgn"], 16) & ~(1 << signal.SIGPIPE - 1) & ~(1 << signal.SIGXFSZ - 1)
    assert ignored >> signal.SIGUSR2 - 1 & 1
    assert not ignored >> signal.SIGUSR1 - 1 & 1
    assert int(masks["SigBlk"], 16) == sum(1 << number - 1 for number in mask)


def test_it_leads_a_group_of_its_own_if_it_is_to(tmp_path: Path) -> None:
    seen = told(tmp_path / "seen", Handover({}, {}), own_group=True)
    assert seen["group"] == seen["pid"]
    assert told(tmp_path / "again", Handover({}, {}))["group"] == os.getpgid(0)


@pytest.mark.parametrize(
    ("program", "error"),
    [("/nonexistent", errno.ENOENT), ("no-such-program-anywhere", errno.ENOENT), ("/etc/passwd", errno.EACCES)],
)
def test_what_cannot_be_started_is_an_error_here(program: str, error: int) -> None:
    before = open_descriptors()
    with pytest.raises(OSError, match=r".") as raised:
        handover.start([program], dict(os.environ), Handover({}, {}), own_group=True)
    assert raised.value.errno == error
    assert opened_since(before) == []
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
