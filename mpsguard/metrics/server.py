"""HTTP server for Prometheus metrics, with a bounded number of connections and a deadline for each.

prometheus_client's own server starts a thread for each connection, without limit or deadline.
"""

import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

MOST_AT_ONCE: Final = 8
"""Connections served at once; further ones are closed. Scrapers connect one at a time, every few seconds."""
DEADLINE_S: Final = 5.0
"""Seconds for each read and write of a connection."""


class _Handler(WSGIRequestHandler):
    timeout = DEADLINE_S

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name is the base class's
        """Do not log scrapes."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__(*arguments, **more)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that break off or exceed the deadline."""


class _ServerV6(_Server):
    address_family = socket.AF_INET6


def serve_metrics(host: str, port: int, registry: CollectorRegistry) -> None:
    """Serve ``registry`` on its own thread for as long as the process lives.

    Raises:
        OSError: the address is in use or cannot be bound.
    """
    server_class = _ServerV6 if ":" in host else _Server
    server = make_server(host, port, make_wsgi_app(registry), server_class, _Handler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
