"""A fence around what one process may use until another shuts it: for good, and at once, wherever the process is.

A process that is stopped or killed may still be inside a system call for as long as that takes, and a successor in
its place must wait for it. A process that passes the fence before it uses what is to be taken over, and leaves it
afterwards, need not be waited for: while it is outside it uses nothing, and once the fence is shut it does not get in.

Both sides have the same file open, each by an open file description of its own, to which flock(2) locks belong: being
inside is a shared lock, and shutting takes an exclusive one. The kernel lets go of them when a process ends. That it is
shut is written into the file, so that it stays so when the process that shut it has ended.
"""

import fcntl
import os
import threading
from typing import Final, Self

_SHUT: Final = b"\1"


class FenceShutError(Exception):
    """The fence is shut: another process goes on."""


class IoFence:
    """The side that shuts it. Owns a descriptor."""

    def __init__(self) -> None:
        """OSError if there is no descriptor or memory left."""
        self._fd = os.memfd_create("mpsguard-io-fence", os.MFD_CLOEXEC)
        try:
            # The page is there from now on: to shut it needs no memory.
            os.pwrite(self._fd, b"\0", 0)
        except BaseException:
            os.close(self._fd)
            raise

    def new_pass(self) -> int:
        """A descriptor for the other side's `FencePass`, the caller's. OSError."""
        return os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)

    def shut(self) -> bool:
        """Shut it unless the other side is inside; whether it is shut. Never waits."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        os.pwrite(self._fd, _SHUT, 0)
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def close(self) -> None:
        """Give the descriptor back; safe to call twice. What was shut stays shut."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class FencePass:
    """The side that goes through it: a block that is inside. Owns a descriptor. Safe for use by several threads.

    Entering and leaving cost three system calls and never wait for the other side. Blocks may lie in one another.
    """

    def __init__(self, fd: int) -> None:
        """Takes over a descriptor that `IoFence.new_pass` gave."""
        self._fd = fd
        self._lock = threading.Lock()
        self._inside = 0

    def close(self) -> None:
        """Give the descriptor back; safe to call twice. No thread may be inside, or come."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __enter__(self) -> Self:
        """FenceShutError."""
        with self._lock:
            if not self._inside:
                self._enter()
            self._inside += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _enter(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            # It is being shut at this moment.
            raise FenceShutError("another process goes on") from None
        if os.pread(self._fd, 1, 0) == _SHUT:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            raise FenceShutError("another process goes on")
