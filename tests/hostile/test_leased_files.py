"""A stranger has a lease on a file that the guard opens, or a lock of its own descriptor: neither is waited for.

An open of a file waits until its lease is given up, 45 s at most (fcntl(2), F_SETLEASE). A read of an epoll's fdinfo
waits for a lock that its process has while events are copied to it: for good, if that memory is a file of FUSE.
"""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mpsguard.client as vault
from mpsguard.linux.descriptors import foreign_fd, memfd
from mpsguard.linux.files.log_tail import LogTail
from tests.hostile.stalled_files import StalledFiles
from tests.hostile.vault_neighbours import Neighbourhood
from tests.integration.vault.running import REPOSITORY

pytestmark = [
    pytest.mark.slow(seconds=15, reason="looks at a stranger hundreds of times, and starts a vault"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the vault's memory is root's, and only root mounts"),
]
LEASER = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
path = sys.argv[1]
made = os.memfd_create(path) if "/" not in path else -1
fd = os.open(f"/proc/self/fd/{made}" if made >= 0 else path, os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("leased", flush=True)
signal.pause()
"""
EPOLL = """
import ctypes, mmap, os, select, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
file = os.open(sys.argv[1], os.O_RDONLY)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
page = libc.mmap(None, 4096, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, file, 0)
poll = select.epoll()
poll.register(os.eventfd(1), select.EPOLLIN)
libc.epoll_wait.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
threading.Thread(target=lambda: libc.epoll_wait(poll.fileno(), page, 1, -1), daemon=True).start()
place = os.open(sys.argv[1], os.O_PATH)
print("ready", flush=True)
while True:
    os.dup2(place, 200)
    os.dup2(poll.fileno(), 200)
"""
LOOKS = """
import os, sys
from pathlib import Path
from mpsguard.linux.descriptors import foreign_fd
pid = int(sys.argv[1])
for _ in range(400):
    for fd in foreign_fd.copies_of_device(os.pidfd_open(pid), pid, Path("/dev/full")).fds:
        os.close(fd)
print("looked")
"""


@contextmanager
def stranger(program: str, argument: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program from its first line of output on."""
    command = [sys.executable, "-c", program, argument]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() != ""
            yield process
        finally:
            process.kill()


def test_a_memory_file_under_a_lease_is_left_out() -> None:
    with stranger(LEASER, "leased") as process:
        found = foreign_fd.memory_files(os.pidfd_open(process.pid), process.pid, "/memfd:leased (deleted)", 1)
    assert found == []


def test_a_log_under_a_lease_is_read_later(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("")
    tail = LogTail(log)
    log.write_text("a line\n")
    with stranger(LEASER, str(log)):
        assert tail.read() == []
    assert tail.read() == ["a line"]


def test_a_vault_serves_others_while_a_writer_has_a_lease_on_its_state() -> None:
    """Root of a container, with no capability at all, owns that memory: so it can open it again and have a lease."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        with (
            Neighbourhood().open() as neighbours,
            vault.Session("leased", socket=neighbours.path) as writer,
            vault.Session("good", socket=neighbours.path, deadline=30) as good,
        ):
            writer.publish(b"state")
            lease(next(fd for fd in map(int, os.listdir("/proc/self/fd")) if "mpsguard-state" in name_of(fd)))
            with pytest.raises(vault.UnavailableError):
                vault.Session("leased", role=vault.LeaseRole.READER, socket=neighbours.path, deadline=2)
            # It is served at once, and not when the kernel ends the lease.
            good.create("region", [vault.Chunk(memfd.create("region", 4096, fixed=True), 4096)])
    finally:
        signal.signal(signal.SIGIO, before)


def name_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


def lease(fd: int) -> int:
    mine = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    fcntl.fcntl(mine, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return mine


def test_what_is_leased_is_not_opened_for_reading() -> None:
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    fd = memfd.create("leased", 4096, fixed=True)
    try:
        mine = lease(fd)
        with pytest.raises(BlockingIOError):
            memfd.read_only(fd)
        os.close(mine)
        os.close(memfd.read_only(fd))
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="FUSE is needed")
def test_a_look_at_descriptors_takes_no_lock_of_an_epoll(tmp_path: Path) -> None:
    """Its process exchanges it with a file of a stalled file system all the time. A look that waits lasts for good."""
    with StalledFiles(tmp_path) as stalled, stranger(EPOLL, str(stalled.file)) as process:
        assert stalled.asked.wait(30)
        looker = subprocess.Popen(
            [sys.executable, "-c", LOOKS, str(process.pid)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
        )
        try:
            assert looker.communicate(timeout=60)[0] == "looked\n"
        finally:
            # Before it can be killed.
            stalled.close()
            looker.kill()
            looker.wait()
