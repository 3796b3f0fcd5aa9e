"""Sockets and readiness between the suite, in the service manager's part, and the guard."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.guard_process import REPOSITORY
from tests.harness.ready_socket import ReadySocket

RECEIVER = """
import json, os, socket
names = [socket.socket(fileno=fd).getsockname() for fd in range(3, 3 + int(os.environ["LISTEN_FDS"]))]
print(json.dumps([names, os.environ["LISTEN_PID"] == str(os.getpid())]))
"""


@pytest.mark.parametrize("turned", [False, True])
def test_sockets_arrive_as_descriptors_3_and_4_in_order(tmp_path: Path, turned: bool) -> None:
    listeners = []
    for name in ("control", "control_privileged"):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(tmp_path / name))
        listener.listen()
        listeners.append(listener)
    if turned:  # the higher descriptor first: no order may clobber the other
        listeners.reverse()
    fds = [listener.fileno() for listener in listeners]
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.listen_exec", ",".join(map(str, fds)), sys.executable, "-c", RECEIVER],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        pass_fds=fds,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == [[listener.getsockname() for listener in listeners], True]
    for listener in listeners:
        listener.close()


def process(text: str, ready: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", text], env=os.environ | {"NOTIFY_SOCKET": str(ready)})


def test_ready_is_heard(tmp_path: Path) -> None:
    text = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM);"
        "s.connect(os.environ['NOTIFY_SOCKET']); s.send(b'STATUS=x'); s.send(b'READY=1\\nSTATUS=y')"
    )
    with ReadySocket(tmp_path / "r") as ready, process(text, ready.path) as child:
        pidfd = os.pidfd_open(child.pid)
        assert ready.wait(pidfd, 30)
        os.close(pidfd)
    assert not (tmp_path / "r").exists()


def test_an_end_before_ready_is_detected(tmp_path: Path) -> None:
    with ReadySocket(tmp_path / "r") as ready, process("raise SystemExit(3)", ready.path) as child:
        pidfd = os.pidfd_open(child.pid)
        assert not ready.wait(pidfd, 30)
        os.close(pidfd)


def test_silence_has_an_end(tmp_path: Path) -> None:
    with ReadySocket(tmp_path / "r") as ready:
        pidfd = os.pidfd_open(os.getpid())
        with pytest.raises(TimeoutError):
            ready.wait(pidfd, 0.05)
        os.close(pidfd)
