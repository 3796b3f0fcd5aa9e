"""HTTP address of the guard: metrics for Prometheus, and pages such as the answers to probes."""

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from mpsguard import config
from mpsguard.control_api.event_stream import EventStream
from mpsguard.metrics.server import serve_http

_LOOP_ANSWERS: Final = 5.0
"""Seconds for the guard's event loop to answer; beyond that the guard is not alive to a probe."""
_RETRY: Final = 10.0
"""Seconds between two attempts to take an address that is in use."""

T = TypeVar("T")


class Page(NamedTuple):
    """What a path is answered with."""

    status: str
    """HTTP's number and word."""
    text: str
    content_type: str = "text/plain; charset=utf-8"


class HttpService:
    """Serves ``/metrics`` and the pages, on threads beside the guard's event loop."""

    def __init__(
        self,
        address: str,
        registry: CollectorRegistry,
        pages: Mapping[str, Callable[[], Page]],
        refresh: Callable[[], None],
        *,
        events: EventStream,
    ) -> None:
        """Create it; `run` serves.

        Args:
            address: As configured; see `config.GuardConfig.metrics_address`.
            registry: The metrics.
            pages: Makes the page of each path, called in the event loop.
            refresh: Brings the metrics up to date, called in the event loop before each scrape.
            events: Receives whether the address could be had.
        """
        self._address = address
        self._metrics: WSGIApplication = make_wsgi_app(registry)
        self._pages = pages
        self._refresh = refresh
        self._events = events
        self.trouble: str | None = None
        """Why nothing is served although it should be; None if all is well."""

    async def run(self) -> None:
        """Serve until cancelled: an address that is in use is tried again and again, and harms no client."""
        if self._address != config.NO_ADDRESS:
            await self._begin()
        await asyncio.Event().wait()

    async def _begin(self) -> None:
        host, port = config.split_address(self._address)
        app = self._app(asyncio.get_running_loop())
        while True:
            try:
                # On a thread: a name may have to be looked up.
                await asyncio.to_thread(serve_http, host, port, app)
                break
            except OSError as error:
                if self.trouble is None:
                    self.trouble = f"{self._address} cannot be had: {error.strerror or error}"
                    self._events.publish("http_not_served", "", detail=self.trouble)
            await asyncio.sleep(_RETRY)
        self.trouble = None
        self._events.publish("http_served", "", address=self._address)

    def _app(self, loop: asyncio.AbstractEventLoop) -> WSGIApplication:
        def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
            path = environ["PATH_INFO"]
            if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
                return _respond(environ, start, Page("405 Method Not Allowed", "GET and HEAD alone\n"))
            try:
                if path == "/metrics":
                    _in_loop(loop, self._refresh)
                    return self._metrics(environ, start)
                make = self._pages.get(path)
                page = _in_loop(loop, make) if make is not None else Page("404 Not Found", "no such page\n")
            except (TimeoutError, RuntimeError):
                # RuntimeError: the loop is closed, as the guard is ending.
                page = Page("503 Service Unavailable", "the guard's event loop does not answer\n")
            return _respond(environ, start, page)

        return app


def _in_loop(loop: asyncio.AbstractEventLoop, make: Callable[[], T]) -> T:
    """Return what ``make`` returns in the event loop; raise TimeoutError if that does not answer in time."""
    made: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        # Not what a probe no longer waits for: a loop that was held up has better things to do.
        if made.set_running_or_notify_cancel():
            try:
                made.set_result(make())
            except Exception as error:  # a fault of ours in one page must not end the guard
                made.set_exception(error)

    loop.call_soon_threadsafe(run)
    try:
        return made.result(_LOOP_ANSWERS)
    finally:
        made.cancel()


def _respond(environ: WSGIEnvironment, start: StartResponse, page: Page) -> Iterable[bytes]:
    body = page.text.encode()
    start(page.status, [("Content-Type", page.content_type), ("Content-Length", str(len(body)))])
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]
