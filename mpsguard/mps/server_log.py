"""server.log, read as it grows: hints about the server's state, quicker than any command and older than any driver.

`mpsguard.daemon_log` has the words. A line nobody knows means nothing: the log only ever prompts a question to the
control daemon, or answers for drivers without ``get_server_status`` (535).
"""

from enum import Enum
from pathlib import Path
from typing import Final

from mpsguard import daemon_log

_READ_LIMIT: Final = 256 * 1024


class LogHint(Enum):
    """What a line of server.log says about the server."""

    FAULT_BEGINS = "fault begins"
    FAULT_ENDS = "fault ends"


_HINTS: Final = {
    daemon_log.BEGINS: LogHint.FAULT_BEGINS,
    daemon_log.UNDER_WAY: LogHint.FAULT_BEGINS,
    daemon_log.ENDS: LogHint.FAULT_ENDS,
    daemon_log.NEW_CONTEXT: LogHint.FAULT_ENDS,
}


def hint(line: str) -> tuple[int, LogHint] | None:
    """The server's pid and what ``line`` says of it, or None if it says nothing of use."""
    parsed = daemon_log.parse_line(line)
    meaning = None if parsed is None else daemon_log.meaning(parsed)
    if parsed is None or meaning is None or meaning.what not in _HINTS:
        return None
    return parsed.pid, _HINTS[meaning.what]


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
