"""One question to the guard from an event loop, which goes on meanwhile."""

import asyncio
from typing import Final, TypeVar

import msgspec
import zmq
import zmq.asyncio

from mpsguard.guard.control_api import protocol
from mpsguard.guard.control_api.protocol import RequestError

T = TypeVar("T")

_ON_THE_WAY: Final = 0.5
"""Seconds the answer may take beyond the guard's own work on it."""


class NoAnswerError(Exception):
    """No guard, none that answers in time, or one that cannot do it; the words say which."""


async def ask(run_directory: str, command: str, arguments: msgspec.Struct, result: type[T], within: float) -> T:
    """Ask for ``within`` seconds at most, and half a second for the way; NoAnswerError."""
    path = protocol.api_socket(run_directory)
    try:
        # ZeroMQ would wait for a guard that may never come.
        async with asyncio.timeout(within):
            _, probe = await asyncio.open_unix_connection(str(path))
        probe.close()
    except TimeoutError:
        raise NoAnswerError(f"{path}: no connection within {within:g} s") from None
    except OSError as error:
        raise NoAnswerError(f"{path}: {error.strerror or error}") from None
    context = zmq.asyncio.Context()
    try:
        sock = context.socket(zmq.DEALER)
        sock.setsockopt(zmq.LINGER, 0)
        sock.connect(f"ipc://{path}")
        async with asyncio.timeout(within + _ON_THE_WAY):
            await sock.send(protocol.encode_request(command, arguments, within))
            return protocol.decode_result(await sock.recv(), result)
    except TimeoutError:
        raise NoAnswerError(f"the guard did not answer within {within + _ON_THE_WAY:g} s") from None
    except (RequestError, msgspec.MsgspecError, zmq.ZMQError) as error:
        raise NoAnswerError(f"the guard: {error}") from None
    finally:
        context.destroy(linger=0)
