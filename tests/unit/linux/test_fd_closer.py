"""Descriptors that are closed aside: one that cannot be closed costs the others nothing.

A descriptor that is closed already stands for one on a file system that makes close(2) fail.
"""

import fcntl
import os

from mpsguard.linux.descriptors.fd_closer import FdCloser, of_strangers

DEADLINE = 20.0


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
    closer.join(DEADLINE)
    assert not is_open(one)
    assert not is_open(other)


def test_those_of_memory_are_closed_one_after_the_other_whatever_becomes_of_one() -> None:
    one, other, none = pair()
    disposal = FdCloser()
    disposal.take((one, none))
    disposal.take((other,))
    assert disposal.drain(DEADLINE)
    disposal.close()
    assert not is_open(one)
    assert not is_open(other)
