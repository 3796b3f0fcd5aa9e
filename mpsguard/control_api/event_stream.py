"""The event stream: each event is logged, kept for a while, and given to every listener."""

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from mpsguard.control_api.protocol import Event
from mpsguard.control_api.structured_log import structlog

KEPT: Final = 1000
"""Events that are kept to be asked for later, of clients and of all else apart."""

_OF_CLIENTS: Final = ("client_", "connection_", "lifeline_", "parking_")
"""How kinds of events begin that a user causes as often as it likes. They do not push out what befell lanes, incidents,
remedies and sessions."""

_GRAVE: Final = frozenset(
    {
        "lane_down",
        "lane_start_failed",
        "lane_flapping",
        "lane_foreign",
        "command_timeout",
        "lane_settings_failed",
        "active_lane_not_saved",
        "journal_failed",
        "journal_dropped",
        "journal_damaged",
        "http_not_served",
        "reload_refused",
        "client_unwatched",
        "client_unbrokered",
    }
)


class EventStream:
    """Numbers events and hands them on, in order."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._of_clients: deque[Event] = deque(maxlen=KEPT)
        self._others: deque[Event] = deque(maxlen=KEPT)
        self._listeners: list[Callable[[Event], None]] = []
        self._log = structlog.get_logger()

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call ``listener`` with every event from now on."""
        self._listeners.append(listener)

    def publish(self, kind: str, domain: str, **data: Any) -> None:
        """Publish that something happened."""
        event = Event(next(self._numbers), time.time(), kind, domain, data)
        (self._of_clients if kind.startswith(_OF_CLIENTS) else self._others).append(event)
        log = self._log.warning if kind in _GRAVE else self._log.info
        log(kind, domain=domain, seq=event.seq, **data)
        for listener in self._listeners:
            listener(event)

    def recent(self) -> list[Event]:
        """Return the last events, oldest first."""
        return list(heapq.merge(self._of_clients, self._others, key=lambda event: event.seq))
