"""What a path was when it was made, and what it is now: whether something of ours was removed or changed, and how."""

import os
import stat
from enum import Enum
from pathlib import Path
from typing import Final, Self

import msgspec

_KINDS: Final = {
    stat.S_IFDIR: "directory",
    stat.S_IFREG: "file",
    stat.S_IFSOCK: "socket",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "FIFO",
}


class PathState(msgspec.Struct, frozen=True):
    """What has a name at one moment."""

    device: int
    inode: int
    mode: int
    """With the type of file, as in stat(2)."""
    uid: int
    gid: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Return what a call of stat(2) or fstat(2) has found."""
        return cls(status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_gid)

    @property
    def permissions(self) -> int:
        """The mode without the type of file."""
        return stat.S_IMODE(self.mode)

    @property
    def kind(self) -> str:
        """The type of file, in a word."""
        return _KINDS.get(stat.S_IFMT(self.mode), "special file")

    def is_same_object(self, other: "PathState") -> bool:
        """Whether both are one object, whatever its mode and owner."""
        return (self.device, self.inode) == (other.device, other.inode)


class Repair(Enum):
    """What is to be done where a path is not as it was made."""

    NOTHING = "nothing"
    RESTORE = "restore"
    """It is still ours: give it its mode and owner back."""
    MAKE = "make"
    """Make it again, in the place of what is there if that is of the same kind."""
    LEAVE = "leave"
    """What is there is not ours to remove."""


def decide(expected: PathState, found: PathState | None, *, is_served: bool = False) -> Repair:
    """Return what is to be done with a path.

    Args:
        expected: what it was when it was made.
        found: what it is; None if it is missing.
        is_served: whether another process listens there.
    """
    if found is None:
        return Repair.MAKE
    if found == expected:
        return Repair.NOTHING
    if found.is_same_object(expected):
        return Repair.RESTORE
    if is_served or found.kind != expected.kind:
        return Repair.LEAVE
    return Repair.MAKE


def change(expected: PathState, found: PathState | None) -> str | None:
    """Return in words what has become of a path; None if nothing has."""
    if found is None:
        return "is gone"
    if not found.is_same_object(expected):
        return f"is another {found.kind} now" if found.kind == expected.kind else f"is a {found.kind} now"
    if (found.uid, found.gid) != (expected.uid, expected.gid):
        return f"belongs to {found.uid}:{found.gid} now, no longer to {expected.uid}:{expected.gid}"
    if found.mode != expected.mode:
        return f"has mode {found.permissions:04o} now, no longer {expected.permissions:04o}"
    return None


def leads_to(path: Path, state: PathState) -> bool:
    """Return whether a path, its links followed, still leads to the same object."""
    try:
        return PathState.of(path.stat()).is_same_object(state)
    except OSError:
        return False
