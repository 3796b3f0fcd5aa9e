"""The process' table of descriptors, made large enough at the start.

When it is full the kernel makes one of twice the size. In a process with threads that waits for all processors to pass
a point at which none looks at the old one (expand_files, synchronize_rcu): long where processors are busy, in whichever
call wants the next descriptor. The table never becomes smaller.
"""

import fcntl
import os
import resource
import socket
from contextlib import suppress
from typing import Final

_MOST: Final = 65536
"""Descriptors for which there is room from the start, as many as the unit allows (LimitNOFILE=): half a mebibyte."""


def prepare_for_many() -> None:
    """Raise the limit of descriptors as far as it goes, and make room for as many; best done before there are threads.

    Children have a table of their own, as large as their descriptors need.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    last = _MOST - 1 if hard == resource.RLIM_INFINITY else min(hard, _MOST) - 1
    # For want of a descriptor or memory the table becomes larger when it has to.
    with suppress(OSError), socket.socket(socket.AF_UNIX) as lowest:
        os.close(fcntl.fcntl(lowest, fcntl.F_DUPFD_CLOEXEC, last))
