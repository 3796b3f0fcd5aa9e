"""Memory without a name: files that live as long as a descriptor of theirs does (memfd_create(2))."""

import fcntl
import os
from contextlib import suppress


def create(name: str, size: int, *, fixed: bool) -> int:
    """A descriptor of ``size`` zero bytes, owned by the caller; memory is taken up as it is written.

    ``fixed``: the size cannot be changed any more, so that a process that maps it need not fear SIGBUS. Only our own
    user number can open it again through /proc, so that a descriptor from `read_only` stays one for any other.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, size)
        if fixed:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def holding(name: str, content: bytes, size: int | None = None) -> int:
    """Return a descriptor of memory of fixed size that begins with ``content``, owned by the caller.

    Args:
        name: see `create`.
        content: the rest is zero.
        size: bytes in all; None: those of ``content``.

    Raises:
        OSError: there is no memory for it, or ``content`` is longer than ``size``.
    """
    fd = create(name, len(content) if size is None else size, fixed=True)
    try:
        at = 0
        while at < len(content):
            at += os.pwrite(fd, memoryview(content)[at:], at)
    except BaseException:
        os.close(fd)
        raise
    return fd


def fix_size(fd: int) -> None:
    """Seal a memfd against growing, if it allows that."""
    with suppress(OSError):
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_GROW:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)


def read_only(fd: int) -> int:
    """Another descriptor of the same memory, owned by the caller, that can be neither written nor mapped writable.

    BlockingIOError where another process has a lease on it (fcntl(2), F_SETLEASE), as one that can open it for writing
    may: an open that waits does so for as long as that process likes, 45 s at most.
    """
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
