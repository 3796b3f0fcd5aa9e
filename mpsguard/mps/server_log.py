"""server.log, read as it grows: hints about the server's state, quicker than any command and older than any driver.

The lines are those of driver 580.159.04; 535 has the same words for the start and the end of a fault. A line nobody
knows means nothing: the log only ever prompts a question to the control daemon, or answers for drivers without
``get_server_status`` (535).
"""

import re
from enum import Enum
from pathlib import Path
from typing import Final

_LINE: Final = re.compile(r"^\[[^\]]*\s(?:Server|Control)\s+(?P<pid>\d+)\] (?P<text>.*)$")
_READ_LIMIT: Final = 256 * 1024


class LogHint(Enum):
    """What a line of server.log says about the server."""

    FAULT_BEGINS = "fault begins"
    FAULT_ENDS = "fault ends"


_HINTS: Final = (
    (re.compile(r"Server is handling a fatal GPU error"), LogHint.FAULT_BEGINS),
    (re.compile(r"Server teardown in progress|Failed to accept client .* with status 807"), LogHint.FAULT_BEGINS),
    (re.compile(r"Destroy server context on device|Creating server context on device"), LogHint.FAULT_ENDS),
)


def hint(line: str) -> tuple[int, LogHint] | None:
    """The server's pid and what ``line`` says of it, or None if it says nothing of use."""
    match = _LINE.match(line)
    if match is None:
        return None
    for pattern, meaning in _HINTS:
        if pattern.search(match["text"]):
            return int(match["pid"]), meaning
    return None


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

        At most 256 KiB are taken in one call; of a larger addition only the end.
        """
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._offset:
                    self._offset, self._rest = 0, b""
                if size - self._offset > _READ_LIMIT:
                    self._offset, self._rest = size - _READ_LIMIT, b""
                file.seek(self._offset)
                added = file.read(_READ_LIMIT)
        except OSError:
            return []
        self._offset += len(added)
        *whole, self._rest = (self._rest + added).split(b"\n")
        self._rest = self._rest[-_READ_LIMIT:]
        return [line.decode(errors="replace") for line in whole]
