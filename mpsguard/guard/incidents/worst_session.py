"""The session that decides on a latency objective: the slowest of those with enough requests to tell.

Requests of all sessions together would hide those of one: a session with many short requests makes 99 of 100 fast,
whatever the requests of another one take.
"""

from typing import NamedTuple

from mpsguard.vault.wire.latency_counts import LatencyCounts, merged
from mpsguard.vault.wire.region import SessionKey


class SessionWindow(NamedTuple):
    """What one session's requests of a window say."""

    session: SessionKey | None
    """None: of several sessions with few requests each, together."""
    requests: int
    p99: float | None
    """In seconds; None without requests."""


class WorstSession:
    """Takes the sessions of one window, one after the other."""

    def __init__(self, least_requests: int) -> None:
        """``least_requests``: a session with fewer is judged together with all others like it."""
        self._least = least_requests
        self._worst: SessionWindow | None = None
        self._few = LatencyCounts((), 0.0)

    def add(self, session: SessionKey, window: LatencyCounts) -> None:
        """Take the requests of a session; some 0.1 ms of work."""
        requests = window.requests()
        if requests < self._least:
            self._few = merged((self._few, window))
        else:
            self._take(SessionWindow(session, requests, window.percentile(0.99)))

    def result(self) -> SessionWindow:
        """Return the worst; if no session has enough requests, those of all together, however few."""
        requests = self._few.requests()
        if requests >= self._least or self._worst is None:
            self._take(SessionWindow(None, requests, self._few.percentile(0.99)))
        assert self._worst is not None
        return self._worst

    def _take(self, window: SessionWindow) -> None:
        if self._worst is None or (window.p99 or 0.0) > (self._worst.p99 or 0.0):
            self._worst = window
