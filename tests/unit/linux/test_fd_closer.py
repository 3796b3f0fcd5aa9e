"""Descriptors that are closed aside: one that cannot be closed costs the others nothing.

A descriptor that is closed already stands for one on a file system that makes close(2) fail.
"""

import fcntl
import os
import subprocess
import sys

import pytest

from mpsguard.linux.descriptors.fd_closer import FdCloser, of_strangers
from tests.harness.waiting import PATIENCE


def pair() -> tuple[int, int, int]:
    """Two descriptors, and a number that is none, nor will be: the kernel gives the lowest ones."""
    one, other = (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(2))
    none = fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 700)
    os.close(none)
    return one, other, none


def is_open(fd: int) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_foreign_descriptors_are_all_closed() -> None:
    one, other, none = pair()

    closer = of_strangers((one, none, other))
    assert closer is not None
    closer.join(PATIENCE)
    assert not is_open(one)
    assert not is_open(other)


def test_those_of_memory_are_closed_one_after_the_other_whatever_becomes_of_one() -> None:
    one, other, none = pair()
    disposal = FdCloser()
    disposal.take((one, none))
    disposal.take((other,))
    assert disposal.drain(PATIENCE)
    disposal.close()
    assert not is_open(one)
    assert not is_open(other)


WITHOUT_THREADS = """
import os, resource, threading
from mpsguard.linux.descriptors.fd_closer import FdCloser, ForeignFdCloser

os.setgid(65534)
os.setuid(65534)
limits = resource.getrlimit(resource.RLIMIT_NPROC)


def opened():
    return os.open(os.devnull, os.O_RDONLY)


def is_open(fd):
    return os.path.lexists(f"/proc/self/fd/{fd}")


memory, others = FdCloser(), ForeignFdCloser()
fds = [opened() for _ in range(4)]
closed = [threading.Event() for _ in range(3)]
resource.setrlimit(resource.RLIMIT_NPROC, (0, limits[1]))
memory.take(fds[:1])
for number, fd in enumerate(fds[1:3]):
    others.close(number, (fd,), closed[number].set)
print(is_open(fds[0]), [each.is_set() for each in closed])
resource.setrlimit(resource.RLIMIT_NPROC, limits)
others.close(2, (fds[3],), closed[2].set)
print([each.wait(5) for each in closed])
memory.take((opened(),))
print(memory.drain(5), [fd for fd in fds if is_open(fd)])
memory.close()
"""


@pytest.mark.root
def test_what_is_closed_while_there_is_no_thread_is_closed_later_at_the_latest() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THREADS], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    said = ["False [False, False, False]", "[True, True, True]", "True []"]
    assert done.stdout.splitlines() == said, done.stderr
