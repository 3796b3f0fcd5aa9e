"""A simulated API server: records every request, and refuses what the real one would refuse of it.

The rules are those of the validation of events.k8s.io/v1 as far as they concern what the reporter writes. No real
kube-apiserver takes part: the contract is simulated.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from mpsguard.guard.pods import Pod

GRANTED = {("list", "", "pods"), ("create", "events.k8s.io", "events"), ("patch", "events.k8s.io", "events")}
"""Verbs, API groups and resources that are served; all else is refused."""
TOKEN = "token-of-the-service-account"
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_EVENTS = re.compile(r"/apis/events\.k8s\.io/v1/namespaces/([^/]+)/events(?:/([^/]+))?")


class Request(NamedTuple):
    """A request as it came."""

    method: str
    path: str
    query: dict[str, list[str]]
    content_type: str | None
    authorization: str | None
    body: Any


class ApiServer:
    """Pods of one node, and the Events that were written."""

    def __init__(self, pods: list[Pod]) -> None:
        self.pods = pods
        self.requests: list[Request] = []
        self.events: dict[tuple[str, str], dict[str, Any]] = {}
        self.failing: list[int] = []
        """Statuses of the next answers to requests for Events, before any is served."""
        self.url = ""

    def kubeconfig(self, directory: Path) -> Path:
        """Write how to reach this server."""
        path = directory / "kubeconfig"
        config = {
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        # JSON is YAML.
        path.write_text(json.dumps(config))
        return path

    def writes(self) -> list[Request]:
        """The requests that wrote something."""
        return [each for each in self.requests if each.method != "GET"]

    def answer(self, request: Request) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of the answer."""
        if request.authorization != f"Bearer {TOKEN}":
            return _status(HTTPStatus.UNAUTHORIZED, "no token")
        if (request.method, request.path) == ("GET", "/api/v1/pods"):
            return HTTPStatus.OK, {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": self._listed()}
        match = _EVENTS.fullmatch(request.path)
        if match is None:
            return _status(HTTPStatus.FORBIDDEN, f"not granted: {request.method} {request.path}")
        if self.failing:
            return _status(self.failing.pop(0), "simulated failure")
        if request.method == "POST" and match[2] is None:
            return self._create(match[1], request)
        if request.method == "PATCH" and match[2] is not None:
            return self._patch((match[1], match[2]), request)
        return _status(HTTPStatus.FORBIDDEN, f"not granted: {request.method} {request.path}")

    def _listed(self) -> list[dict[str, Any]]:
        return [
            {
                "metadata": {"uid": pod.uid, "namespace": pod.namespace, "name": pod.name},
                "spec": {"containers": []},
                "status": {
                    "containerStatuses": [
                        {
                            "name": each.name,
                            "containerID": f"containerd://{each.id}",
                            "image": "",
                            "imageID": "",
                            "ready": True,
                            "restartCount": 0,
                        }
                        for each in pod.containers
                    ]
                },
            }
            for pod in self.pods
        ]

    def _create(self, namespace: str, request: Request) -> tuple[int, dict[str, Any]]:
        event = request.body
        problem = _problem(namespace, event)
        if problem:
            return _status(HTTPStatus.UNPROCESSABLE_ENTITY, problem)
        key = (namespace, event["metadata"]["name"])
        if key in self.events:
            return _status(HTTPStatus.CONFLICT, "already exists")
        self.events[key] = event
        return HTTPStatus.CREATED, event

    def _patch(self, key: tuple[str, str], request: Request) -> tuple[int, dict[str, Any]]:
        if request.content_type != "application/merge-patch+json":
            return _status(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, str(request.content_type))
        if key not in self.events:
            return _status(HTTPStatus.NOT_FOUND, "not found")
        series = request.body.get("series", {})
        if set(request.body) != {"series"}:
            return _status(HTTPStatus.UNPROCESSABLE_ENTITY, "nothing of an Event but its series may change")
        if series.get("count", 0) < 2 or not _MICRO_TIME.fullmatch(series.get("lastObservedTime", "")):
            return _status(HTTPStatus.UNPROCESSABLE_ENTITY, f"series: {series}")
        self.events[key]["series"] = series
        return HTTPStatus.OK, self.events[key]


def _problem(namespace: str, event: dict[str, Any]) -> str:
    """Return why the API server would refuse a new Event; "" if it would not."""
    regarding = event.get("regarding", {})
    rules = {
        "kind": (event.get("apiVersion"), event.get("kind")) == ("events.k8s.io/v1", "Event"),
        "metadata.namespace": event["metadata"].get("namespace") == namespace,
        "metadata.name": len(event["metadata"]["name"]) <= 253 and _NAME.fullmatch(event["metadata"]["name"]),
        "regarding.namespace": namespace == (regarding.get("namespace") or "default"),
        "regarding": all(regarding.get(key) for key in ("apiVersion", "kind", "name", "uid")),
        "eventTime": _MICRO_TIME.fullmatch(event.get("eventTime", "")),
        "reportingController": event.get("reportingController"),
        "reportingInstance": 0 < len(event.get("reportingInstance", "")) <= 128,
        "action": 0 < len(event.get("action", "")) <= 128,
        "reason": 0 < len(event.get("reason", "")) <= 128,
        "note": len(event.get("note", "")) <= 1024,
        "type": event.get("type") in ("Normal", "Warning"),
    }
    return ", ".join(name for name, kept in rules.items() if not kept)


def _status(code: int, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "message": message}


@contextmanager
def api_server(pods: list[Pod]) -> Iterator[ApiServer]:
    """Serve on a port of this machine's own address."""
    state = ApiServer(pods)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = Request(
                self.command,
                parts.path,
                parse_qs(parts.query),
                self.headers.get("Content-Type"),
                self.headers.get("Authorization"),
                json.loads(body) if body else None,
            )
            state.requests.append(request)
            status, answer = state.answer(request)
            encoded = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
