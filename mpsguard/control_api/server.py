"""The control API: requests answered one by one, each with a deadline; no input whatever ends the guard."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec
import zmq
import zmq.asyncio

from mpsguard.control_api import protocol
from mpsguard.control_api.handler import Handler
from mpsguard.control_api.protocol import Error, Event, Reply, Request, RequestError
from mpsguard.decoding import decoded
from mpsguard.tasks import TaskSet, end_tasks, report_defect

_AT_ONCE: Final = 64
"""Requests worked on at the same time; one more is answered "busy"."""

_requests: Final[msgspec.json.Decoder[Request]] = msgspec.json.Decoder(Request)

G = TypeVar("G")


class Api(Generic[G]):
    """Owns the two sockets. Only root, and the members of one group if there is one, can open them."""

    def __init__(self, guard: G, handlers: Mapping[str, Handler[G, Any]], run_directory: str) -> None:
        self._guard = guard
        self._handlers = handlers
        self._context = zmq.asyncio.Context()
        self._requests = self._context.socket(zmq.ROUTER)
        self._events = self._context.socket(zmq.PUB)
        self._run_directory = run_directory
        self._working = TaskSet()
        self._bound: list[Path] = []

    def open(self, group: str | None) -> None:
        """Bind both sockets, 0600 for our user or 0660 with ``group``; OSError or LookupError (no such group)."""
        for sock, path in (
            (self._requests, protocol.api_socket(self._run_directory)),
            (self._events, protocol.events_socket(self._run_directory)),
        ):
            sock.setsockopt(zmq.MAXMSGSIZE, protocol.MAX_MESSAGE)
            sock.setsockopt(zmq.LINGER, 0)
            # A listener that stops reading loses events, and costs no other listener anything.
            sock.setsockopt(zmq.SNDHWM, 1000)
            # The name must never be there with wider rights than it ends up with.
            before = os.umask(0o177)
            try:
                sock.bind(f"ipc://{path}")
            except zmq.ZMQError as error:
                raise OSError(error.errno, error.strerror, str(path)) from None
            finally:
                os.umask(before)
            self._bound.append(path)
            if group is not None:
                shutil.chown(path, group=group)
                path.chmod(0o660)

    def publish(self, event: Event) -> None:
        """Send an event to all listeners; never waits."""
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
        await end_tasks(self._working)
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
        return Reply(protocol.VERSION, request_id, error=Error("deadline", "not done within the request's deadline"))
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
