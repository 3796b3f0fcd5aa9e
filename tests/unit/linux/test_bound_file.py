"""Whether a path leads to a listener, by its file and by the process that listens."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from mpsguard.linux.sockets import bound_file
from mpsguard.linux.sockets.bound_file import is_reached


def listener(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    sock.bind(str(path))
    sock.listen()
    return sock


@pytest.fixture(params=[0x89E0, 0x89E1], ids=["by its file", "by its process"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Without CAP_NET_ADMIN the ioctl fails, as an unknown one does.
    monkeypatch.setattr(bound_file, "_SIOCUNIXFILE", request.param)
    return tmp_path / "control"


def test_it_is_reached_until_its_name_is_gone(path: Path) -> None:
    with listener(path) as sock:
        assert is_reached(sock, path)
        path.rename(path.with_name("other"))
        assert not is_reached(sock, path)
        assert is_reached(sock, path.with_name("other"))


def test_a_dead_socket_in_its_place(path: Path) -> None:
    with listener(path) as sock:
        path.unlink()
        listener(path).close()
        assert not is_reached(sock, path)


def test_the_socket_of_another_process_in_its_place(path: Path) -> None:
    with listener(path) as sock:
        path.unlink()
        ready, tells = os.pipe()
        child = os.fork()
        if child == 0:
            listener(path).detach()
            os.write(tells, b"x")
            os.read(os.pipe()[0], 1)
        try:
            os.read(ready, 1)
            assert not is_reached(sock, path)
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
            os.close(ready)
            os.close(tells)
