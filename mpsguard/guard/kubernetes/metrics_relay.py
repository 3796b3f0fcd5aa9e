"""The guard's metrics at an address of the pod: the guard itself listens on the node's loopback alone."""

import asyncio
from collections.abc import Iterable
from typing import Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from mpsguard.guard.control_api.async_client import NoAnswerError, ask
from mpsguard.guard.control_api.messages.guard import Exposition
from mpsguard.guard.control_api.protocol import NoArguments
from mpsguard.guard.metrics.server import serve_http

_WITHIN: Final = 3.0
"""Seconds for the guard's answer; Prometheus waits ten by default."""


def serve_metrics(host: str, port: int, run_directory: str) -> int:
    """Serve ``/metrics`` for as long as the process lives; return the port.

    Raises:
        OSError: the address cannot be had.
    """
    return serve_http(host, port, _app(run_directory))


def _app(run_directory: str) -> WSGIApplication:
    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "GET":
            return _respond(start, "405 Method Not Allowed", "GET alone\n")
        if environ["PATH_INFO"] != "/metrics":
            return _respond(start, "404 Not Found", "there is /metrics\n")
        try:
            # On the thread of this connection, beside the reporter's event loop.
            found = asyncio.run(ask(run_directory, "metrics", NoArguments(), Exposition, _WITHIN))
        except NoAnswerError as error:
            return _respond(start, "503 Service Unavailable", f"{error}\n")
        return _respond(start, "200 OK", found.text, "text/plain; version=0.0.4; charset=utf-8")

    return app


def _respond(
    start: StartResponse, status: str, text: str, content_type: str = "text/plain; charset=utf-8"
) -> Iterable[bytes]:
    body = text.encode()
    start(status, [("Content-Type", content_type), ("Content-Length", str(len(body)))])
    return [body]
