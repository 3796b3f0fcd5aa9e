"""What is root, asked of real processes: each thing that separates a container's root from this machine's is enough."""

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mpsguard.linux.identity import CONTAINER_ROOT, ROOT, Credentials
from mpsguard.linux.processes import peer_user
from mpsguard.linux.sockets import seqpacket
from tests.harness.waiting import wait_for
from tests.hostile import container_root
from tests.hostile.container_root import Prefix
from tests.integration.kubernetes import pod_cgroup

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="being root of a container needs root"),
]

_CONNECT = """
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
sock.recv(1)
"""


@contextmanager
def connection(directory: Path, within: Prefix = ()) -> Iterator[socket.socket]:
    """Yield the connection that another process made."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        path = directory / "socket"
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(30)
        with subprocess.Popen([*within, sys.executable, "-c", _CONNECT, str(path)]) as process:
            try:
                accepted, _ = listener.accept()
                with accepted:
                    yield accepted
            finally:
                process.kill()


def peer_in(directory: Path, within: Prefix = ()) -> Credentials:
    with connection(directory, within) as accepted:
        first = peer_user.peer_of(accepted)
        # Asked again, it is remembered.
        assert peer_user.peer_of(accepted) == first
        return first


def test_a_process_like_this_one_is_root(tmp_path: Path) -> None:
    assert peer_in(tmp_path).user == ROOT


@pytest.mark.parametrize("kind", container_root.KINDS)
def test_root_of_a_container_is_another_user(tmp_path: Path, kind: str) -> None:
    with container_root.KINDS[kind]() as within:
        peer = peer_in(tmp_path, within)
    assert peer.uid == 0
    assert peer.user >= CONTAINER_ROOT


def test_a_pod_is_one_user_and_another_pod_another_one(tmp_path: Path) -> None:
    with ExitStack() as pods:
        one, other = (pods.enter_context(container_root.in_container()) for _ in range(2))
        users = [peer_in(tmp_path, within).user for within in (one, one, other)]
    assert users[0] == users[1] != users[2]
    assert min(users) > CONTAINER_ROOT


def test_a_privileged_container_that_leaves_its_control_group_is_root(tmp_path: Path) -> None:
    """In the host's pid namespace. Nothing tells it from root any more, and it could be root by other ways."""
    top = pod_cgroup.hierarchy()
    with container_root.in_pod() as within:
        assert peer_in(tmp_path, within).user >= CONTAINER_ROOT
        leaves = ("sh", "-c", f'echo $$ > "{top}/cgroup.procs" && exec "$@"', "sh")
        assert peer_in(tmp_path, (*within, *leaves)).user == ROOT


def test_a_process_that_has_ended_is_no_root(tmp_path: Path) -> None:
    with connection(tmp_path) as accepted:
        pidfd = seqpacket.peer_pidfd(accepted)
        assert pidfd is not None
        pid = seqpacket.peer(accepted).pid
    try:
        wait_for("its end", lambda: not Path(f"/proc/{pid}").exists())
        assert peer_user.user_of(pid, 0, pidfd) == CONTAINER_ROOT
        # As if its number were another process' by now.
        assert peer_user.user_of(os.getpid(), 0, pidfd) == CONTAINER_ROOT
    finally:
        os.close(pidfd)


def test_a_process_that_leaves_this_machines_root_is_seen_to_have_left(tmp_path: Path) -> None:
    drops = "import ctypes, os; os.read(0, 1); ctypes.CDLL(None).unshare(1 << 28); os.write(1, b'.'); os.read(0, 1)"
    with subprocess.Popen([sys.executable, "-c", drops], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert peer_user.user_of(process.pid, 0) == ROOT
        process.stdin.write(b".")
        process.stdin.flush()
        assert process.stdout.read(1) == b"."
        assert peer_user.user_of(process.pid, 0) == CONTAINER_ROOT
        process.kill()


def test_uids_other_than_0_are_users_as_they_are() -> None:
    assert peer_user.user_of(1, 65534) == 65534


_GROUPS = "import os; os.setgroups(range(1 << 20, (1 << 20) + 65536)); os.write(1, b'.'); os.read(0, 1)"


@pytest.mark.parametrize("kind", container_root.KINDS)
def test_what_a_process_makes_of_itself_does_not_make_it_slow_to_tell_apart(kind: str) -> None:
    """Its /proc/PID/status lists its groups: 8 ms of the event loop for each new process, before its user is known."""
    if kind == "user namespace":
        pytest.skip("with one group mapped it can set no others")
    with (
        container_root.KINDS[kind]() as within,
        subprocess.Popen(
            [*within, sys.executable, "-c", _GROUPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.read(1) == b"."
        pid = descendant(process.pid)
        assert "".join(Path(f"/proc/{pid}/status").read_text().partition("Groups:")[2]).count(" ") > 65536
        took = []
        for _ in range(20):
            peer_user._container_roots.clear()
            began = time.thread_time()
            assert peer_user.user_of(pid, 0) >= CONTAINER_ROOT
            took.append(time.thread_time() - began)
        process.kill()
    assert min(took) < 1e-3


def descendant(pid: int) -> int:
    """Return the last of a line of only children."""
    while below := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(below[0])
    return pid


def test_a_process_that_could_not_be_looked_at_is_asked_again() -> None:
    """As where the guard has no descriptor left for a moment: an operator's program is root afterwards."""
    with subprocess.Popen(["sleep", "60"]) as process:
        pidfd = os.pidfd_open(process.pid)
        try:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
            try:
                assert peer_user.user_of(process.pid, 0, pidfd) == CONTAINER_ROOT
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            assert peer_user.user_of(process.pid, 0, pidfd) == ROOT
        finally:
            os.close(pidfd)
            process.kill()
