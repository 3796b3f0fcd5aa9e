"""A log that another process writes, followed from its present end."""

import os
from pathlib import Path
from typing import Final

from mpsguard.linux.files import prompt_read

_READ_LIMIT: Final = 256 * 1024


class LogTail:
    """Reads what was added to a log since the last call; starts at the present end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        try:
            self._offset = path.stat().st_size
        except OSError:
            self._offset = 0

    def read(self) -> list[str]:
        """Whole new lines, oldest first. A log that shrank (rotated, truncated) is read from its start.

        At most 256 KiB are taken in one call; of a larger addition only the end. What a writer holds, by a lock or a
        lease, is not waited for: a later call returns it.
        """
        try:
            # No file object: this runs several times for each client that connects.
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            size = os.fstat(fd).st_size
            if size < self._offset:
                self._offset, self._rest = 0, b""
            if size - self._offset > _READ_LIMIT:
                self._offset, self._rest = size - _READ_LIMIT, b""
            added = prompt_read.read(fd, min(size - self._offset, _READ_LIMIT), self._offset)
        except OSError:
            return []
        finally:
            os.close(fd)
        self._offset += len(added)
        *whole, self._rest = (self._rest + added).split(b"\n")
        self._rest = self._rest[-_READ_LIMIT:]
        return [line.decode(errors="replace") for line in whole]
