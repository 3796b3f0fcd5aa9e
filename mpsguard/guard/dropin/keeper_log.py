"""The log of a keeper and its guard: private, and cut when it is large, with the part before kept once.

The guard has the file as its standard error for life, so it is copied and cut as a whole, by descriptors that were
opened before: a directory that other users may list is not written to while the keeper runs.
"""

import asyncio
import os
from pathlib import Path
from typing import Final, NamedTuple

from mpsguard.linux.files.directory import Directory

LARGEST: Final = 64 << 20
"""Bytes from which on the log is cut."""
_LOOK: Final = 10.0
"""Seconds between two looks at its size."""
_AT_ONCE: Final = 1 << 20
_MODE: Final = 0o600
"""It has command lines, which HTTP withholds from other users, too."""


class KeeperLog(NamedTuple):
    """Descriptors of the log, which is appended to, and of the file for the part before; the caller closes both."""

    log: int
    older: int

    @classmethod
    def open(cls, path: Path) -> "KeeperLog":
        """Open both, the second as ``path`` with ``.1``; OSError, also if another user could change the directory."""
        with Directory.make(path.parent, 0o711) as directory:
            log = _open(directory, path.name, os.O_RDWR | os.O_APPEND)
            try:
                return cls(log, _open(directory, f"{path.name}.1", os.O_WRONLY))
            except BaseException:
                os.close(log)
                raise

    def close(self) -> None:
        """Close both."""
        os.close(self.log)
        os.close(self.older)

    def cut(self, largest: int = LARGEST) -> bool:
        """Move what is in the log to the older file, and return True, if it is larger than that.

        A line that is written while the log is cut may be lost.
        """
        if os.fstat(self.log).st_size <= largest:
            return False
        os.ftruncate(self.older, 0)
        at = 0
        while part := os.pread(self.log, _AT_ONCE, at):
            written = 0
            while written < len(part):
                written += os.pwrite(self.older, memoryview(part)[written:], at + written)
            at += len(part)
        os.ftruncate(self.log, 0)
        return True

    async def keep_small(self) -> None:
        """Cut the log whenever it is large, until cancelled. If the older file cannot be written, its part is lost."""
        while True:
            await asyncio.sleep(_LOOK)
            try:
                await asyncio.to_thread(self.cut)
            except OSError:
                os.ftruncate(self.log, 0)


def _open(directory: Directory, name: str, flags: int) -> int:
    fd = directory.open_file(name, flags, _MODE)
    try:
        if os.fstat(fd).st_mode & 0o777 != _MODE:
            # An earlier version's, which every user could read.
            os.fchmod(fd, _MODE)
    except BaseException:
        os.close(fd)
        raise
    return fd
