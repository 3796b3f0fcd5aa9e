"""A process that may open a few descriptors more, and no others."""

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from mpsguard.linux.descriptors.fd_closer import close_all


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process have ``count`` more descriptors for a block (EMFILE)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as undo:
        undo.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        first = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        taken = [first]
        undo.callback(lambda: close_all(taken))
        most = max(int(fd) for fd in os.listdir("/proc/self/fd")) + 1 + count
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        try:
            while True:
                taken.append(os.dup(first))
        except OSError:
            for _ in range(count):
                os.close(taken.pop())
        yield
