"""The event stream: each event is logged, kept for a while, and given to every listener."""

import asyncio
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from mpsguard.guard.control_api.protocol import Event
from mpsguard.guard.control_api.structured_log import structlog
from mpsguard.linux.identity import is_root
from mpsguard.linux.pacing import BurstLimit
from mpsguard.linux.user_budget import UserBudget

KEPT: Final = 1000
"""Events that are kept to be asked for later, of clients and of all else apart."""

_OF_CLIENTS: Final = ("client_", "connection_", "lifeline_", "memory_limit_", "parking_")
"""How kinds of events begin that a user causes as often as it likes. They do not push out what befell lanes, incidents,
remedies and sessions."""

LEFT_OUT: Final = "events_left_out"
"""Event: the log lacks events of a user from now on, or did until now."""

_GRAVE: Final = frozenset(
    {
        "lane_down",
        "lane_start_failed",
        "lane_doubted",
        "lane_flapping",
        "lane_foreign",
        "command_timeout",
        "server_lost",
        "lane_settings_failed",
        "active_lane_not_saved",
        "journal_failed",
        "journal_dropped",
        "journal_damaged",
        "http_not_served",
        "path_lost",
        "path_mended",
        "reload_refused",
        "client_unwatched",
        "client_unbrokered",
        "memory_limit_exceeded",
        "memory_limit_unmeasured",
        LEFT_OUT,
    }
)


DEFECT: Final = "internal_error"
"""Event: something of the guard itself failed, and the guard goes on."""

LINES_OF_A_USER: Final = 2000
"""Lines of the log that a user other than root may cause at once: some hundreds of clients that come and go."""
LINES_WINDOW: Final = 100.0
"""Seconds in which as many come again: some 5 KB a second, where clients that crash without end caused 215."""

_DEFECTS: Final = (10, 60.0)
"""Defects that are published: at most so many in so many seconds. Their tracebacks are long, and a user may cause one
defect as often as it likes."""


class EventStream:
    """Numbers events and hands them on, in order."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` gives the seconds by which shares of the log come again."""
        self._clock = clock
        self._numbers = itertools.count(1)
        self._of_clients: deque[Event] = deque(maxlen=KEPT)
        self._others: deque[Event] = deque(maxlen=KEPT)
        self._listeners: list[Callable[[Event], None]] = []
        self._defects = BurstLimit(*_DEFECTS)
        self._lines: UserBudget[int] = UserBudget(LINES_OF_A_USER, LINES_WINDOW)
        self._left_out: dict[int, int] = {}
        """Number of events of each user that were not logged since its share was used up."""
        self._log = structlog.get_logger()

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call ``listener`` with every event from now on."""
        self._listeners.append(listener)

    def publish(self, kind: str, domain: str, *, user: int | None = None, **data: Any) -> None:
        """Publish that something happened.

        Args:
            kind: of the event.
            domain: in which it happened; "" for none.
            user: the user that may cause such events as often as it likes (`UserKey`), if there is one. What exceeds
                its share of the log is told to listeners alone.
            data: what else the event tells.
        """
        logs = user is None or self._may_log(user)
        event = self._keep(kind, domain, data)
        if logs:
            log = self._log.warning if kind in _GRAVE else self._log.info
            log(kind, domain=domain, seq=event.seq, **data)
        self._tell(event)

    def catch_defects(self, loop: asyncio.AbstractEventLoop) -> None:
        """Publish what the event loop reports from now on (see `tasks.report_defect`), and what ends a thread."""

        def on_loop(_: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
            # A task that is lost says so on the thread that collects it.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._publish_defect, str(context["message"]), context.get("exception"))

        def on_thread(raised: threading.ExceptHookArgs) -> None:
            if raised.exc_type is SystemExit:
                return
            name = "" if raised.thread is None else raised.thread.name
            try:
                loop.call_soon_threadsafe(self._publish_defect, f"thread {name}", raised.exc_value)
            except RuntimeError:
                # The loop has ended.
                threading.__excepthook__(raised)

        loop.set_exception_handler(on_loop)
        threading.excepthook = on_thread

    def recent(self) -> list[Event]:
        """Return the last events, oldest first."""
        return list(heapq.merge(self._of_clients, self._others, key=lambda event: event.seq))

    def _may_log(self, user: int) -> bool:
        """Return whether the log has room for one more event of a user; publish where it begins and ceases to lack."""
        if is_root(user):
            return True
        now = self._clock()
        if user in self._left_out:
            # Not for each line that comes again: what is logged of a storm shall be whole for a while.
            if self._lines.left(user, now) < LINES_OF_A_USER / 2:
                self._left_out[user] += 1
                return False
            detail = "of its user were not logged"
            self.publish(LEFT_OUT, "", uid=user, count=self._left_out.pop(user), detail=detail)
        if self._lines.take(user, now):
            return True
        self._left_out[user] = 1
        detail = "of its user are not logged until there are fewer; listeners are told of them"
        self.publish(LEFT_OUT, "", uid=user, count=None, detail=detail)
        return False

    def _publish_defect(self, where: str, error: BaseException | None) -> None:
        """Publish a defect, with its traceback in the log alone; beyond `_DEFECTS` they are left out."""
        now = time.monotonic()
        if self._defects.wait(now):
            return
        self._defects.happened(now)
        detail = where if error is None else f"{where}: {type(error).__name__}: {error}"
        event = self._keep(DEFECT, "", {"detail": detail})
        self._log.error(event.kind, domain=event.domain, seq=event.seq, **event.data, exc_info=error)
        self._tell(event)

    def _keep(self, kind: str, domain: str, data: dict[str, Any]) -> Event:
        event = Event(next(self._numbers), time.time(), kind, domain, data)
        (self._of_clients if kind.startswith(_OF_CLIENTS) else self._others).append(event)
        return event

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)
