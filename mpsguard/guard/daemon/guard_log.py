"""The guard's log: its level, which a reload can change, and its entries in journald."""

import json
import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from mpsguard.guard.control_api.structured_log import structlog
from mpsguard.linux.systemd.journald import JournalSocket, field_name, message_id

_PRIORITIES: Final = {"debug": "7", "info": "6", "warning": "4", "error": "3", "critical": "2"}
"""Levels of syslog(3)."""


class LogLevel:
    """Processor for structlog that drops what is below the level."""

    def __init__(self, level: str) -> None:
        self.set(level)

    def set(self, level: str) -> None:
        """Keep what is at least ``level``: debug, info, warning or error."""
        self._least = logging.getLevelNamesMapping()[level.upper()]

    def __call__(self, _: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Pass the event on, or raise DropEvent."""
        if logging.getLevelNamesMapping().get(method.upper(), logging.ERROR) < self._least:
            raise structlog.DropEvent
        return event


def entry(event: Mapping[str, Any], line: str) -> dict[str, str]:
    """Return the fields of an event; ``line`` is its message."""
    kind = str(event["event"])
    fields = {
        "MESSAGE": line,
        "MESSAGE_ID": message_id(kind),
        "PRIORITY": _PRIORITIES.get(str(event.get("level")), "6"),
        "SYSLOG_IDENTIFIER": "mpsguard",
        "MPSGUARD_EVENT": kind,
    }
    for key, value in event.items():
        if key not in ("event", "level", "timestamp") and value is not None:
            fields.setdefault(field_name(key), value if isinstance(value, str) else json.dumps(value, default=str))
    return fields


class JournalRenderer:
    """Last processor of structlog: hands the event to `JournalLogger`, rendered and as it is."""

    def __init__(self, renderer: Any) -> None:
        """``renderer`` makes the line."""
        self._renderer = renderer

    def __call__(
        self, logger: Any, method: str, event: MutableMapping[str, Any]
    ) -> tuple[tuple[str, Mapping[str, Any]], dict[str, Any]]:
        """Return the arguments of the logger's method."""
        fields = dict(event)
        return (self._renderer(logger, method, event), fields), {}


class JournalLogger:
    """Logs to journald; to standard error, as without fields, what journald does not take at once."""

    def __init__(self, journal: JournalSocket) -> None:
        self._journal = journal

    def msg(self, line: str, event: Mapping[str, Any]) -> None:
        """Log one event."""
        if not self._journal.send(entry(event, line)):
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - standard error is the log

    debug = info = warning = error = critical = exception = log = msg
