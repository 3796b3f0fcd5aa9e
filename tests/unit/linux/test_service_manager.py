"""The service manager's protocol, with this test in the service manager's place."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mpsguard.linux.systemd import service_manager


def test_notes_and_descriptors_reach_the_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        read_end, write_end = os.pipe()
        assert service_manager.notify("FDSTORE=1", "FDNAME=x", fds=(read_end,))
        data, fds, _, _ = socket.recv_fds(manager, 4096, 4)
        assert data == b"FDSTORE=1\nFDNAME=x"
        os.write(write_end, b"!")
        assert os.read(fds[0], 1) == b"!"
        for fd in (*fds, read_end, write_end):
            os.close(fd)


def test_an_abstract_address_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        name = f"mpsguard-test-{os.getpid()}"
        manager.bind("\0" + name)
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        assert service_manager.notify("READY=1")
        assert manager.recv(64) == b"READY=1"


def test_without_a_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not service_manager.notify("READY=1")


TAKE = """
import os, sys
os.environ['LISTEN_PID'] = str(os.getpid()) if sys.argv[1] == 'mine' else '1'
os.environ['LISTEN_FDS'] = '2'
os.environ['LISTEN_FDNAMES'] = 'a:b'
from mpsguard.linux.systemd import service_manager
print(service_manager.take_listen_fds(), 'LISTEN_FDS' in os.environ, os.get_inheritable(3))
"""


@pytest.mark.parametrize(
    ("whose", "expected"), [("mine", "{3: 'a', 4: 'b'} False False"), ("another's", "{} False True")]
)
def test_handed_over_descriptors_are_taken_once_and_only_if_meant_for_us(whose: str, expected: str) -> None:
    def put_in_place() -> None:
        for fd in (3, 4):
            os.dup2(1, fd)

    said = subprocess.run(
        [sys.executable, "-c", TAKE, whose],
        preexec_fn=put_in_place,
        close_fds=False,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == expected


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [("30000000", None, 15.0), ("30000000", "1", None), ("0", None, None), ("x", None, None)],
)
def test_the_watchdog_wants_to_hear_twice_in_its_interval(
    monkeypatch: pytest.MonkeyPatch, usec: str, pid: str | None, seconds: float | None
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", pid or str(os.getpid()))
    assert service_manager.watchdog_interval() == seconds
