"""Processes and users, each by what is never given to another one."""

from typing import Final, NewType

import msgspec

PID_LIMIT: Final = 1 << 22
"""PID_MAX_LIMIT of 64-bit Linux (proc(5)): no pid is as large. The vendor's programs write larger numbers for pids that
they cannot see."""

UserKey = NewType("UserKey", int)
"""A user that has shares and owns sessions: a uid; or a number beyond all uids, for root of a container.

`mpsguard.linux.processes.peer_user` finds it out, and takes the same number for all processes of a pod or container.
"""

ROOT: Final = UserKey(0)
"""Root of this machine. A process with uid 0 in a container is another user."""

CONTAINER_ROOT: Final = UserKey(1 << 32)
"""The first number beyond all uids: root of containers that are not known by a pod or an id."""


def is_root(user: int) -> bool:
    """Return whether a user (`UserKey`) is root of this machine, which no share limits."""
    return user == ROOT


class Credentials(msgspec.Struct, frozen=True, gc=False):
    """The sender of a message, verified by the kernel (``struct ucred``)."""

    pid: int
    uid: int
    gid: int
    container_root: UserKey | None = None
    """Its user, if it has uid 0 and is not root of this machine. Only `peer_user` sets it."""

    @property
    def user(self) -> UserKey:
        """Return the user that it counts for."""
        return UserKey(self.uid) if self.container_root is None else self.container_root


class ProcessKey(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """The unique identity of a process: a pid is reused, a pid with its start time is not.

    ``start_ticks`` is field 22 of ``/proc/PID/stat``: clock ticks after boot.
    """

    pid: int
    start_ticks: int
    execs: int = 0
    """How often it has executed another program while it was a client. Each time, its CUDA process ended; a later
    client with the same pid and start time is a different one."""

    @property
    def process(self) -> "ProcessKey":
        """The identity of the process in /proc, regardless of the program that it executes."""
        return ProcessKey(self.pid, self.start_ticks)

    def __str__(self) -> str:
        return f"{self.pid}.{self.start_ticks}" + (f".{self.execs}" if self.execs else "")
