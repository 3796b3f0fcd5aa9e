"""server.log, read as it grows: hints about the server's state, quicker than any command and older than any driver.

`guard.daemon_log` has the words. A line that is not known means nothing: the log only ever prompts a question to the
control daemon, or answers for drivers without ``get_server_status`` (535).
"""

from enum import Enum
from typing import Final

from mpsguard.guard import daemon_log


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
