"""The pages of the guard's HTTP service: answers to probes, the overview, and the reports of incidents.

Whatever a reader asks for, and however often: the event loop hands out what it knows, without waiting for a control
daemon, and at most once a second. Documents are made on the connections' threads, one at a time, and the page's once a
second.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

import mpsguard
from mpsguard.guard.control_api.health import ProbeKind
from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.guard.daemon import guard_view
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.daemon.guard_view import GuardView, probe
from mpsguard.guard.daemon.http_service import EventLoop, Page
from mpsguard.guard.journal.records import IncidentSummary, JournalError, RecordedIncident
from mpsguard.guard.report import overview_page, page
from mpsguard.guard.report.overview import MOST_INCIDENTS, Overview
from mpsguard.guard.report.report_model import build_report
from mpsguard.guard.triage import catalog

_PROBES: Final = {"/livez": ProbeKind.LIVE, "/readyz": ProbeKind.READY}
_INCIDENTS: Final = "/incidents/"
_HTML: Final = "text/html; charset=utf-8"
_RECENT: Final = 1.0
"""Seconds that an overview counts as recent: any user may ask for it."""
_TURN: Final = 5.0
"""Seconds that a reader waits while another one's document is made."""
_JOURNAL_ANSWERS: Final = 2.0
"""Seconds for the journal to answer, which waits for the disk."""
_LONGEST_ID: Final = 64

_NOT_HERE: Final = "reports are on the guard's own socket alone: http.sock in its run directory\n"


class GuardSite:
    """Makes the pages of one guard."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._making = threading.Lock()
        """Held while a document is made: two would take twice as much of the event loop's time."""
        self._made_at = float("-inf")
        self._overview: Overview | None = None
        self._documents: dict[tuple[bool, bool], Page] = {}
        """Those of the overview, by whether they show everything and load themselves again. Making one takes
        milliseconds: in a flood of readers, all of a processor, for which the event loop waits in turns."""

    def answer(self, path: str, query: str, loop: EventLoop, *, trusted: bool) -> Page | None:
        """See `Site`."""
        if path in _PROBES:
            return loop.call(lambda: self._probe(_PROBES[path]))
        if path == "/":
            return self._in_turn(lambda: self._main(query, loop, trusted))
        if path.startswith(_INCIDENTS):
            name = path.removeprefix(_INCIDENTS)
            return self._in_turn(lambda: self._report(name, loop)) if trusted else Page("403 Forbidden", _NOT_HERE)
        return None

    def _probe(self, purpose: ProbeKind) -> Page:
        said = probe(self._guard, purpose)
        return Page("200 OK" if said.ok else "503 Service Unavailable", f"{said.text}\n")

    def _in_turn(self, make: Callable[[], Page]) -> Page:
        if not self._making.acquire(timeout=_TURN):
            raise TimeoutError
        try:
            return make()
        finally:
            self._making.release()

    def _main(self, query: str, loop: EventLoop, trusted: bool) -> Page:
        if self._overview is None or time.monotonic() - self._made_at >= _RECENT:
            self._overview = _overview(*loop.run(self._look))
            self._made_at = time.monotonic()
            self._documents.clear()
        kind = (trusted, query != "still")
        if kind not in self._documents:
            text = overview_page.render(self._overview, everything=trusted, refreshing=kind[1])
            self._documents[kind] = Page("200 OK", text, _HTML, overview_page.POLICY)
        return self._documents[kind]

    async def _look(self) -> tuple[GuardView, tuple[IncidentSummary, ...], str]:
        """Return the guard now, its incidents, and why these are not known; in the event loop."""
        view = guard_view.take(self._guard)
        try:
            async with asyncio.timeout(_JOURNAL_ANSWERS):
                return view, tuple(await self._guard.journal.list(MOST_INCIDENTS)), ""
        except TimeoutError:
            return view, (), "the journal does not answer: its disk is slow"
        except (JournalError, RequestError) as error:
            return view, (), str(error)

    def _report(self, name: str, loop: EventLoop) -> Page:
        async def look() -> RecordedIncident:
            return await self._guard.journal.get(name)

        if len(name) > _LONGEST_ID:
            return Page("404 Not Found", "no such incident\n")
        try:
            record = loop.run(look)
        except KeyError:
            return Page("404 Not Found", "no such incident\n")
        except (JournalError, RequestError) as error:
            return Page("503 Service Unavailable", f"{error}\n")
        advice = {number: catalog.lookup(number).advice for number in record.incident.xids}
        return Page("200 OK", page.render(build_report(record, advice)), _HTML, page.POLICY)


def _overview(view: GuardView, incidents: tuple[IncidentSummary, ...], unknown: str) -> Overview:
    clients, left_out = guard_view.clients(view)
    return Overview(
        host=socket.gethostname(),
        version=mpsguard.__version__,
        at=time.time(),
        started_at=view.started_at,
        health=view.health.health.value,
        problems=view.health.problems,
        lanes=view.lanes,
        gpus=view.gpus,
        clients=clients,
        clients_left_out=left_out,
        incidents=incidents,
        incidents_unknown=unknown,
        sensors=view.sensors,
    )
