"""HTTP of the guard: metrics for Prometheus, answers to probes, and the page, on an address and on a unix socket.

Every process that can connect to the address is answered there. The unix socket is the guard's own user's and group's,
as the control API is, and what it serves may say more.
"""

import asyncio
import concurrent.futures
import grp
import ipaddress
import socket
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from mpsguard.guard import config
from mpsguard.guard.config import GuardConfig
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.metrics.server import serve_http, serve_local_http
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.tasks import report_defect

_LOOP_ANSWERS: Final = 5.0
"""Seconds for the guard's event loop to answer; beyond that the guard is not alive to a probe."""
_FRESH_FOR: Final = 9
"""Times as long as it took to bring the metrics up to date, scrapes are answered with what they were."""
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
            refresh: Brings the metrics up to date, called in the event loop before a scrape.
            events: Receives whether the address could be had.
        """
        self._address = settings.metrics_address
        self._names = settings.metrics_names
        self.path = socket_path(settings.run_directory)
        """Of the unix socket."""
        self._group = settings.group
        self._metrics: WSGIApplication = make_wsgi_app(registry)
        self._site = site
        self._make_fresh = refresh
        self._fresh_until = float("-inf")
        """CLOCK_MONOTONIC seconds."""
        self._events = events
        self._end: Callable[[], None] | None = None
        """Ends what serves on the unix socket."""
        self.trouble: str | None = None
        """Why nothing is served although it should be; None if all is well."""

    def open(self) -> None:
        """Serve on the unix socket; OSError, or LookupError if there is no such group.

        To be called once the run directory is ours: no other guard serves there.
        """
        self.serve(self.listen())

    def listen(self) -> socket.socket:
        """Return a socket that is bound to the path, on any thread; errors as `open`."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            with Directory.open(self.path.parent) as directory:
                if self._group is None:
                    directory.bind(listener, self.path.name, 0o600)
                else:
                    directory.bind(listener, self.path.name, 0o660, grp.getgrnam(self._group).gr_gid)
        except BaseException:
            listener.close()
            raise
        return listener

    def serve(self, listener: socket.socket) -> None:
        """Serve on a bound socket from now on, in the place of an earlier one; it belongs to this object."""
        if self._end is not None:
            self._end()
        self._end = serve_local_http(listener, self._app(EventLoop(asyncio.get_running_loop()), trusted=True))

    def close(self) -> None:
        """Take the unix socket's name away. Safe to call twice."""
        if self._end is not None:
            self.path.unlink(missing_ok=True)
            self._end = None

    async def run(self) -> None:
        """Serve on the address until cancelled: one that is in use is tried again and again, and harms no client."""
        if self._address != config.NO_ADDRESS:
            await self._begin()
        await asyncio.Event().wait()

    async def _begin(self) -> None:
        host, port = config.split_address(self._address)
        names = _names_of(host, socket.gethostname(), *self._names)
        app = self._app(EventLoop(asyncio.get_running_loop()), trusted=False, names=names)
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

    def _refresh(self) -> None:
        """Bring the metrics up to date, in the event loop: a tenth of its time at most, since any user may scrape."""
        began = time.monotonic()
        if began >= self._fresh_until:
            self._make_fresh()
            ended = time.monotonic()
            self._fresh_until = ended + _FRESH_FOR * (ended - began)

    def _app(self, loop: EventLoop, *, trusted: bool, names: frozenset[str] = frozenset()) -> WSGIApplication:
        def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
            path, query = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
            if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
                return _respond(environ, start, Page("405 Method Not Allowed", "GET and HEAD alone\n"))
            if not _is_ours(environ.get("HTTP_HOST", ""), names):
                said = "ask for localhost or an IP address; names: metrics_names in [guard]\n"
                return _respond(environ, start, Page("421 Misdirected Request", said))
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


def _names_of(*names: str) -> frozenset[str]:
    return frozenset(name.removesuffix(".").lower() for name in names)


def _is_ours(host: str, names: frozenset[str]) -> bool:
    """Whether a request names this machine by ``localhost``, an address, one of ``names``, or not at all.

    A browser may reach the guard, here or through a forwarded port. There, a site of a stranger could give its own name
    the address 127.0.0.1, and read what this one answers; but it cannot choose another name than its own.
    """
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    (name,) = _names_of(name)
    if name in ("", "localhost") or name in names:
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
