"""Hand listening sockets to a program as systemd does: `python -m tests.harness.listen_exec FD,FD ARGV...`.

The contract is sd_listen_fds(3): the sockets are descriptors 3 and up, LISTEN_FDS counts them, and LISTEN_PID is the
pid of the receiver, which only exists once the child does. Hence this step between fork and the program itself.
"""

import fcntl
import os
import sys
from typing import Final

_FIRST: Final = 3


def main() -> None:
    """Move the descriptors into place and become the program."""
    fds = [int(fd) for fd in sys.argv[1].split(",")]
    # Out of the way first: one of them may sit where another has to go.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST + len(fds)) for fd in fds]
    for fd in fds:
        os.close(fd)
    for index, fd in enumerate(moved):
        os.dup2(fd, _FIRST + index)  # the copy is inherited, the source is not
    os.environ |= {"LISTEN_FDS": str(len(fds)), "LISTEN_PID": str(os.getpid())}
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
