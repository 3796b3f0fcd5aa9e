"""Processes of other users at the loopback address: they take no image from `image push --to`, and give none to
`image pull --listen`."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpsguard.images.store.store import ImageStore
from mpsguard.images.store.stream_frames import GREETING
from tests.harness.guard_process import REPOSITORY
from tests.unit.images.store.samples import commit, some_bytes

pytestmark = pytest.mark.slow(seconds=5, reason="starts a dozen commands")

CTL = [sys.executable, "-m", "mpsguard.cli.ctl", "image"]
DEADLINE = 30


class User:
    """A user with a store, which has one image."""

    def __init__(self, home: Path, image: str) -> None:
        self.environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HOME": str(home)}
        self.environment.pop("XDG_DATA_HOME", None)
        self.store = home / ".local" / "share" / "mpsguard" / "images"
        self.store.parent.mkdir(parents=True)
        with ImageStore(self.store) as store:
            commit(store, image, {"r": some_bytes(image, 100_000)})

    def images(self) -> list[str]:
        with ImageStore(self.store) as store:
            return sorted(store.names())

    def stream(self, image: str) -> bytes:
        command = [*CTL, "push", image]
        return subprocess.run(command, env=self.environment, capture_output=True, timeout=DEADLINE, check=True).stdout

    def push(self, image: str, port: int, secret: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*CTL, "push", image, "--to", f"127.0.0.1:{port}"],
            env={**self.environment, "MPSGUARD_IMAGE_SECRET": secret},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@contextmanager
def pulling(user: User) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [*CTL, "pull", "--listen", "127.0.0.1:0", "--wait", str(DEADLINE)]
    with subprocess.Popen(command, env=user.environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            yield process, int(process.stderr.readline().rpartition(":")[2])
        finally:
            process.kill()


def heard(sock: socket.socket) -> bytes:
    """All that comes, to the end of the connection."""
    said = b""
    try:
        while more := sock.recv(65536):
            said += more
    except (ConnectionResetError, TimeoutError):
        pass
    return said


@pytest.fixture
def owner(tmp_path: Path) -> User:
    return User(tmp_path / "owner", "weights")


@pytest.fixture
def receiver(tmp_path: Path) -> User:
    return User(tmp_path / "receiver", "base")


def test_one_that_listens_gets_nothing(owner: User) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE)
        with owner.push("weights", listener.getsockname()[1], "a secret that the stranger does not have") as pushing:
            sock, _ = listener.accept()
            with sock:
                sock.settimeout(DEADLINE)
                # As if it were `image pull`, with a guess of what follows.
                sock.sendall(bytes(1 << 16))
                sock.settimeout(3)
                said = heard(sock)
            assert pushing.wait(DEADLINE) == 1
    assert GREETING not in said
    assert len(said) <= 64


def test_one_that_connects_gives_no_image_and_holds_up_no_other(owner: User, receiver: User, tmp_path: Path) -> None:
    forged = User(tmp_path / "stranger", "forged").stream("forged")
    with pulling(receiver) as (process, port):
        assert process.stderr is not None
        held = [socket.create_connection(("127.0.0.1", port), DEADLINE) for _ in range(100)]
        with socket.create_connection(("127.0.0.1", port), DEADLINE) as sock:
            sock.settimeout(DEADLINE)
            try:
                sock.sendall(forged)
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            assert len(heard(sock)) <= 32
        kind, _, secret = process.stderr.readline().strip().partition(": ")
        assert kind == "secret"
        with owner.push("weights", port, secret) as pushing:
            assert pushing.wait(DEADLINE) == 0
        assert process.wait(DEADLINE) == 0
        for each in held:
            each.close()
    assert receiver.images() == ["base", "weights"]


def test_a_wrong_secret_is_refused_and_may_be_followed_by_the_right_one(owner: User, receiver: User) -> None:
    with pulling(receiver) as (process, port):
        assert process.stderr is not None
        secret = process.stderr.readline().removeprefix("secret: ").strip()
        for given, status in ((secret[:-1], 1), ("", 2), (secret, 0)):
            with owner.push("weights", port, given) as pushing:
                assert pushing.wait(DEADLINE) == status, given
        assert process.wait(DEADLINE) == 0
