"""HTTP server for metrics and probes, in which connections that stall keep no other one out.

prometheus_client's own server starts a thread for each connection, without limit or deadline.
"""

import io
import socket
import threading
import time
from collections.abc import Callable
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication

MOST_AT_ONCE: Final = 8
"""Connections served at once, each by a thread; one more ends the oldest. An answer takes milliseconds: the oldest of
eight is one that stalls."""
DEADLINE_S: Final = 5.0
"""Seconds for each read and write of a connection."""
_TO_END: Final = 0.5
"""Seconds for the thread of an ended connection to give its place back; if it does not, the new one is closed."""
_PAUSE: Final = 0.005
"""Seconds before the next connection is accepted after one was ended for it: such ends are 200 a second at most."""
_WAITING: Final = 64
"""Connections that wait to be accepted: at 200 a second for a third of a second."""


class _Handler(WSGIRequestHandler):
    timeout = DEADLINE_S

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name is the base class's
        """Do not log requests."""

    def get_stderr(self) -> Any:
        """Return a place for tracebacks of connections that break off, which would fill the guard's log."""
        return io.StringIO()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = _WAITING

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._changed = threading.Condition()
        self._open: dict[int, Any] = {}
        """The sockets in service by identity, oldest first."""
        super().__init__(*arguments, **more)

    def server_bind(self) -> None:
        """Bind without the base class's look at DNS for the host's full name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            if len(self._open) >= MOST_AT_ONCE:
                _end(next(iter(self._open.values())))
                self._changed.wait_for(lambda: len(self._open) < MOST_AT_ONCE, _TO_END)
                time.sleep(_PAUSE)
            if len(self._open) >= MOST_AT_ONCE:
                self.shutdown_request(request)
                return
            self._open[id(request)] = request
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._changed:
                del self._open[id(request)]
                self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that break off or exceed the deadline."""


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _LocalServer(_Server):
    """Serves on a unix socket, which it is given: its name and mode are its owner's."""

    address_family = socket.AF_UNIX

    def __init__(self, listener: socket.socket, handler: type[_Handler]) -> None:
        super().__init__(("localhost", 0), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()
        self.server_activate()

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """Return the next connection, with a name for its peer: the handler expects one."""
        return super().get_request()[0], ("local", 0)


def serve_http(host: str, port: int, app: WSGIApplication) -> int:
    """Serve ``app`` on its own thread for as long as the process lives; return the port.

    Raises:
        OSError: the address is in use or cannot be bound.
    """
    server = (_ServerV6 if ":" in host else _Server)((host, port), _Handler)
    _begin(server, app, "http")
    return server.server_port


def serve_local_http(listener: socket.socket, app: WSGIApplication) -> Callable[[], None]:
    """Serve ``app`` in the same way on a unix socket that is bound; the server listens on it and owns it.

    Return what ends that, without waiting for it.
    """
    server = _LocalServer(listener, _Handler)
    _begin(server, app, "http-local")

    def end() -> None:
        server.shutdown()
        server.server_close()

    return lambda: threading.Thread(target=end, name="http-local-end", daemon=True).start()


def _begin(server: _Server, app: WSGIApplication, name: str) -> None:
    server.set_app(app)
    threading.Thread(target=server.serve_forever, name=name, daemon=True).start()


def _end(request: socket.socket) -> None:
    """Wake the thread that reads from or writes to a connection, which then ends."""
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It has just ended by itself.
        return
