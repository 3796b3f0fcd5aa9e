"""HTTP of the guard: metrics for Prometheus, answers to probes, and the page, on an address and on a unix socket.

Every process that can connect to the address is answered there. The unix socket is the guard's own user's and group's,
as the control API is, and what it serves may say more.
"""

import asyncio
import concurrent.futures
import ipaddress
import shutil
import socket
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from mpsguard import config
from mpsguard.config import GuardConfig
from mpsguard.control_api.event_stream import EventStream
from mpsguard.metrics.server import serve_http, serve_local_http
from mpsguard.tasks import report_defect

_LOOP_ANSWERS: Final = 5.0
"""Seconds for the guard's event loop to answer; beyond that the guard is not alive to a probe."""
_RETRY: Final = 10.0
"""Seconds between two attempts to take an address that is in use."""
_HEADERS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
"""Sent with every page: no other site may use it, and no browser keeps it."""

T = TypeVar("T")


class Page(NamedTuple):
    """What a path is answered with."""

    status: str
    """HTTP's number and word."""
    text: str
    content_type: str = "text/plain; charset=utf-8"
    policy: str = "default-src 'none'; frame-ancestors 'none'"
    """Content-Security-Policy."""


class EventLoop:
    """The guard's event loop, for the threads that answer HTTP; each wait for it has a deadline."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self, make: Callable[[], T]) -> T:
        """Return what ``make`` returns in the event loop.

        Raises:
            TimeoutError: the loop does not answer in time, or is closed, as the guard is ending.
        """
        made: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            # Not what a probe no longer waits for: a loop that was held up has better things to do.
            if made.set_running_or_notify_cancel():
                try:
                    made.set_result(make())
                except Exception as error:  # a fault of ours in one page must not end the guard
                    made.set_exception(error)

        self._call_soon(run)
        try:
            return made.result(_LOOP_ANSWERS)
        finally:
            made.cancel()

    def report_defect(self, where: str, error: Exception) -> None:
        """Have the loop's exception handler log an exception that nothing expects."""
        with suppress(TimeoutError):
            self._call_soon(partial(report_defect, where, error))

    def _call_soon(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            raise TimeoutError("the event loop is closed") from None

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what a coroutine returns; errors as in `call`, and it is cancelled when it takes too long."""
        running: list[concurrent.futures.Future[T]] = []

        def begin() -> None:
            running.append(asyncio.run_coroutine_threadsafe(make(), self._loop))

        self.call(begin)
        (future,) = running
        try:
            return future.result(_LOOP_ANSWERS)
        finally:
            future.cancel()


class Site(Protocol):
    """The pages."""

    def answer(self, path: str, query: str, loop: EventLoop, *, trusted: bool) -> Page | None:
        """Return the page of a path, or None if there is none; called on the connection's own thread.

        Args:
            path: As it was asked for.
            query: What followed it.
            loop: The guard's event loop.
            trusted: Whether the reader may use the control API, too.

        Raises:
            TimeoutError: the event loop does not answer in time, or is closed.
        """


class HttpService:
    """Serves ``/metrics`` and a site, on threads beside the guard's event loop."""

    def __init__(
        self,
        settings: GuardConfig,
        registry: CollectorRegistry,
        site: Site,
        refresh: Callable[[], None],
        *,
        events: EventStream,
    ) -> None:
        """Create it; `open` and `run` serve.

        Args:
            settings: Address, directory and group.
            registry: The metrics.
            site: Makes all other pages.
            refresh: Brings the metrics up to date, called in the event loop before each scrape.
            events: Receives whether the address could be had.
        """
        self._address = settings.metrics_address
        self._path = socket_path(settings.run_directory)
        self._group = settings.group
        self._metrics: WSGIApplication = make_wsgi_app(registry)
        self._site = site
        self._refresh = refresh
        self._events = events
        self._is_bound = False
        self.trouble: str | None = None
        """Why nothing is served although it should be; None if all is well."""

    def open(self) -> None:
        """Serve on the unix socket; OSError, or LookupError if there is no such group.

        To be called once the run directory is ours: no other guard serves there.
        """
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(self._path))
            self._is_bound = True
            # No connection is accepted before the mode is what it shall be: nothing listens yet.
            self._path.chmod(0o600)
            if self._group is not None:
                shutil.chown(self._path, group=self._group)
                self._path.chmod(0o660)
            serve_local_http(listener, self._app(EventLoop(asyncio.get_running_loop()), trusted=True))
        except BaseException:
            listener.close()
            raise

    def close(self) -> None:
        """Take the unix socket's name away. Safe to call twice."""
        if self._is_bound:
            self._path.unlink(missing_ok=True)
            self._is_bound = False

    async def run(self) -> None:
        """Serve on the address until cancelled: one that is in use is tried again and again, and harms no client."""
        if self._address != config.NO_ADDRESS:
            await self._begin()
        await asyncio.Event().wait()

    async def _begin(self) -> None:
        host, port = config.split_address(self._address)
        app = self._app(EventLoop(asyncio.get_running_loop()), trusted=False)
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

    def _app(self, loop: EventLoop, *, trusted: bool) -> WSGIApplication:
        def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
            path, query = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
            if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
                return _respond(environ, start, Page("405 Method Not Allowed", "GET and HEAD alone\n"))
            if trusted and not _is_local_name(environ.get("HTTP_HOST", "")):
                return _respond(environ, start, Page("421 Misdirected Request", "ask for localhost\n"))
            try:
                if path == "/metrics":
                    loop.call(self._refresh)
                    return self._metrics(environ, start)
                page = self._site.answer(path, query, loop, trusted=trusted)
                page = page or Page("404 Not Found", "no such page\n")
            except TimeoutError:
                page = Page("503 Service Unavailable", "the guard's event loop does not answer\n")
            except Exception as error:  # a fault of ours in one page; wsgiref's own answer would lose its traceback
                loop.report_defect("a page", error)
                page = Page("500 Internal Server Error", "a defect of the guard; its log has the traceback\n")
            return _respond(environ, start, page)

        return app


def socket_path(run_directory: str) -> Path:
    """Return the path of the unix socket of the guard with this run directory."""
    return Path(run_directory) / "http.sock"


def _is_local_name(host: str) -> bool:
    """Whether a request names this machine by ``localhost``, by an address, or not at all.

    The socket may be reached by a browser through a forwarded port. There, a site of a stranger could give its own name
    the address 127.0.0.1, and read what this one answers; but it cannot choose another name than its own.
    """
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name in ("", "localhost"):
        return True
    with suppress(ValueError):
        ipaddress.ip_address(name.strip("[]"))
        return True
    return False


def _respond(environ: WSGIEnvironment, start: StartResponse, page: Page) -> Iterable[bytes]:
    body = page.text.encode()
    start(
        page.status,
        [
            ("Content-Type", page.content_type),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", page.policy),
            *_HEADERS,
        ],
    )
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]
