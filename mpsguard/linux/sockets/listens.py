"""Whether a process listens at the path of a SEQPACKET socket; as a program, the exit status (0: one does).

It asks by connecting: /proc/net/unix also has the names of abstract sockets, which every user may choose. The standard
library alone: the installer and the package run it with a Python that need not have anything else.
"""

import errno
import os
import socket
import sys
from typing import Final

_NOTHING_LISTENS: Final = (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR)


def listens(path: str | os.PathLike[str]) -> bool:
    """Return whether a process listens at a path; True where that cannot be told, for lack of permission say."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as probe:
        return probe.connect_ex(os.fspath(path)) not in _NOTHING_LISTENS


if __name__ == "__main__":
    sys.exit(not listens(sys.argv[1]))
