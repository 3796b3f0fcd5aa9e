"""The control API: requests answered one by one, each with a deadline; no input whatever ends the guard."""

import asyncio
import grp
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
import zmq
import zmq.asyncio

from mpsguard.guard.control_api import protocol
from mpsguard.guard.control_api.protocol import Error, Event, Reply, Request, RequestError
from mpsguard.linux.decoding import decoded
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.tasks import Owner, report_defect

Needs_contra = TypeVar("Needs_contra", contravariant=True)
A = TypeVar("A", bound=msgspec.Struct)
_AT_ONCE: Final = 64
"""Requests worked on at the same time; one more is answered "busy"."""

_BACKLOG: Final = 100
"""As ZeroMQ's own (ZMQ_BACKLOG)."""

_requests: Final[msgspec.json.Decoder[Request]] = msgspec.json.Decoder(Request)

G = TypeVar("G")


class Handler(Generic[Needs_contra, A]):
    """The server half of one command: its name, the type of its arguments, and what carries it out."""

    def __init__(
        self,
        name: str,
        arguments: type[A],
        serve: Callable[[Needs_contra, A], Awaitable[msgspec.Struct]],
        *,
        goes_on: str = "",
    ) -> None:
        """``goes_on``: what is not broken off at the deadline of a request, and what tells its outcome."""
        self.name = name
        self.goes_on = goes_on
        self.arguments = arguments
        self._decoder = msgspec.json.Decoder(arguments)
        self._serve = serve

    async def __call__(self, guard: Needs_contra, raw: msgspec.Raw) -> msgspec.Struct:
        """Carry the command out; raises RequestError."""
        try:
            arguments = decoded(self._decoder.decode, raw)
        except msgspec.DecodeError as error:
            raise RequestError("arguments", f"{self.name}: {error}") from None
        return await self._serve(guard, arguments)


class Api(Generic[G]):
    """Owns the two sockets. Only root, and the members of one group if there is one, can open them."""

    def __init__(self, guard: G, handlers: Mapping[str, Handler[G, Any]], run_directory: str) -> None:
        self._guard = guard
        self._handlers = handlers
        self._context = zmq.asyncio.Context()
        self._requests = self._context.socket(zmq.ROUTER)
        self._events = self._context.socket(zmq.PUB)
        self._sockets = {
            protocol.api_socket(run_directory): self._requests,
            protocol.events_socket(run_directory): self._events,
        }
        self._group: int | None = None
        self._working = Owner()
        self._bound: set[Path] = set()

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the two sockets lie."""
        return tuple(self._sockets)

    def open(self, group: str | None) -> None:
        """Bind both sockets, 0600 for our user or 0660 with ``group``; OSError or LookupError (no such group)."""
        self._group = None if group is None else grp.getgrnam(group).gr_gid
        for path, sock in self._sockets.items():
            sock.setsockopt(zmq.MAXMSGSIZE, protocol.MAX_MESSAGE)
            sock.setsockopt(zmq.LINGER, 0)
            # A listener that stops reading loses events, and costs no other listener anything.
            sock.setsockopt(zmq.SNDHWM, 1000)
            self.serve(path, self.listen(path))

    def listen(self, path: Path) -> socket.socket:
        """Return a listening socket for one of the paths, on any thread; OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with Directory.open(path.parent) as directory:
                directory.bind(listener, path.name, 0o600 if self._group is None else 0o660, self._group)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener

    def serve(self, path: Path, listener: socket.socket) -> None:
        """Serve on a listening socket from now on, in the place of an earlier one; it belongs to this object."""
        sock = self._sockets[path]
        if path in self._bound:
            sock.unbind(f"ipc://{path}")
        # ZeroMQ takes the socket as it is, and removes no name.
        sock.setsockopt(zmq.USE_FD, listener.detach())
        sock.bind(f"ipc://{path}")
        self._bound.add(path)

    def publish(self, event: Event) -> None:
        """Send an event to all listeners; never waits. After `close` there are none."""
        if self._events.closed:
            return
        topic = f"{event.domain}.{event.kind}".encode()
        with suppress(zmq.Again):
            # Not a coroutine: with NOBLOCK a PUB socket sends, or drops, at once.
            zmq.Socket.shadow(self._events).send_multipart([topic, msgspec.json.encode(event)], zmq.NOBLOCK)

    async def run(self) -> None:
        """Answer requests until cancelled."""
        while True:
            frames = await self._requests.recv_multipart()
            self._working.spawn(self._answer(frames, busy=len(self._working) >= _AT_ONCE))

    async def close(self) -> None:
        """End what is being worked on and give the sockets back."""
        try:
            await self._working.end()
        finally:
            self._context.destroy(linger=0)
            # Only what we bound: the names may be another guard's, which is why we end.
            for path in self._bound:
                path.unlink(missing_ok=True)

    async def _answer(self, frames: list[bytes], *, busy: bool) -> None:
        # ROUTER puts the peer's routing id first; a REQ peer adds an empty frame. The payload is the last one.
        *envelope, payload = frames
        answer = await reply(self._guard, self._handlers, payload, busy=busy)
        with suppress(zmq.ZMQError):
            await self._requests.send_multipart([*envelope, msgspec.json.encode(answer)])


async def reply(guard: G, handlers: Mapping[str, Handler[G, Any]], payload: bytes, *, busy: bool) -> Reply:
    """The answer to a request, whatever its bytes are; ``busy``: no more work can be taken."""
    request_id = command = ""
    handler: Handler[G, Any] | None = None
    try:
        request = _decode(payload)
        request_id, command = request.id, request.command
        handler = handlers.get(request.command)
        if handler is None:
            raise RequestError("unknown_command", f"{request.command[:64]!r} is no command of this guard")
        if busy:
            raise RequestError("busy", f"{_AT_ONCE} requests are being worked on")
        async with asyncio.timeout(min(max(request.deadline, 0.0), protocol.MAX_DEADLINE)):
            result = await handler(guard, request.args)
    except RequestError as error:
        return Reply(protocol.VERSION, request_id, error=Error(error.code, str(error)))
    except TimeoutError:
        goes_on = f"; {handler.goes_on}" if handler is not None and handler.goes_on else ""
        text = f"not done within the request's deadline{goes_on}"
        return Reply(protocol.VERSION, request_id, error=Error("deadline", text))
    except Exception as error:  # a fault of ours in one command must not end the guard
        report_defect(f"command {command}", error)
        return Reply(protocol.VERSION, request_id, error=Error("failed", f"{type(error).__name__}: {error}"))
    return Reply(protocol.VERSION, request_id, result=msgspec.to_builtins(result))


def _decode(payload: bytes) -> Request:
    try:
        request = decoded(_requests.decode, payload)
    except msgspec.DecodeError as error:
        raise RequestError("malformed", f"no request: {error}") from None
    if request.v != protocol.VERSION:
        raise RequestError("version", f"version {request.v} is not spoken here; {protocol.VERSION} is")
    return request
