"""Commands to one stock control daemon: one worker, one at a time, each with a deadline that counts from the asking."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.linux.packet_stream import PacketStream, close_all
from mpsguard.linux.seqpacket import Packet
from mpsguard.mps import handshake
from mpsguard.mps.handshake import PeerKind, ProtocolError

MAX_QUEUED: Final = 256
_MAX_LINES: Final = 4096


class CommandFailedError(Exception):
    """The control daemon could not be reached, broke off, or spoke another protocol."""


class CommandTimeoutError(CommandFailedError):
    """The control daemon did not answer within the deadline."""


class Reply(msgspec.Struct, frozen=True):
    """What the control daemon answered to one command."""

    lines: tuple[str, ...]
    exit_status: int


async def ask(pipe_directory: Path, command: str, deadline: float) -> Reply:
    """Send one command line as the vendor's own front end does, and collect the reply.

    Raises CommandTimeoutError after ``deadline`` seconds, CommandFailedError if there is no daemon to ask.
    """
    try:
        async with asyncio.timeout(deadline):
            return await _exchange(pipe_directory, command)
    except TimeoutError:
        raise CommandTimeoutError(f"no answer to {command!r} within {deadline:g} s") from None
    except (OSError, ProtocolError) as error:
        raise CommandFailedError(f"{command!r}: {error}") from None


async def greeting(pipe_directory: Path, deadline: float) -> bytes:
    """How the control daemon greets; raises like `ask`. The connection is given up after it, as clients' first one."""
    try:
        async with asyncio.timeout(deadline):
            with await PacketStream.connect(str(pipe_directory / "control")) as stream:
                return handshake.check_greeting((await _receive(stream)).data)
    except TimeoutError:
        raise CommandTimeoutError(f"no greeting within {deadline:g} s") from None
    except (OSError, ProtocolError) as error:
        raise CommandFailedError(f"greeting: {error}") from None


async def _exchange(pipe_directory: Path, command: str) -> Reply:
    with await PacketStream.connect(str(pipe_directory / "control_privileged")) as stream:
        word = handshake.check_greeting((await _receive(stream)).data)
        await stream.send(handshake.credentials_word(word))
        await stream.send(handshake.encode_kind(PeerKind.UI))
        for message in (*handshake.encode_command(command), handshake.END_OF_COMMANDS):
            await stream.send(message)
        lines: list[str] = []
        while len(lines) < _MAX_LINES:
            said = handshake.decode_reply((await _receive(stream)).data)
            if isinstance(said, int):
                return Reply(tuple(lines), said)
            lines.append(said)
        raise ProtocolError(f"more than {_MAX_LINES} lines of reply")


async def _receive(stream: PacketStream) -> Packet:
    packet = await stream.receive(handshake.PACKET_LIMIT)
    close_all(packet.fds)
    if packet.end:
        raise ProtocolError("the control daemon closed the connection")
    return packet


class CommandWorker:
    """Runs the guard's commands to one lane in order. Owns one task; a hang costs only the asker its deadline."""

    def __init__(self, pipe_directory: Path, timed_out: Callable[[str], None]) -> None:
        """``timed_out`` is told of every command that got no answer in time."""
        self._pipe_directory = pipe_directory
        self._timed_out = timed_out
        self._queue: asyncio.Queue[tuple[str, float, asyncio.Future[Reply]]] = asyncio.Queue(MAX_QUEUED)
        self._task = asyncio.create_task(self._run(), name=f"commands {pipe_directory}")

    async def ask(self, command: str, deadline: float) -> Reply:
        """Queue ``command`` and await its reply; raises as the function `ask`, or at once when too many wait."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Reply] = loop.create_future()
        try:
            self._queue.put_nowait((command, loop.time() + deadline, answer))
        except asyncio.QueueFull:
            raise CommandFailedError(f"{command!r}: {MAX_QUEUED} commands wait already") from None
        return await answer

    async def close(self) -> None:
        """End the worker; who still waits for an answer gets CommandFailedError."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        while not self._queue.empty():
            command, _, answer = self._queue.get_nowait()
            if not answer.done():
                answer.set_exception(CommandFailedError(f"{command!r}: the lane is being given up"))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            command, due, answer = await self._queue.get()
            if answer.cancelled():
                continue
            try:
                reply = await ask(self._pipe_directory, command, max(due - loop.time(), 0.0))
            except CommandFailedError as error:
                if isinstance(error, CommandTimeoutError):
                    self._timed_out(str(error))
                if not answer.done():
                    answer.set_exception(error)
            except asyncio.CancelledError:
                if not answer.done():
                    answer.set_exception(CommandFailedError(f"{command!r}: the lane is being given up"))
                raise
            else:
                if not answer.done():
                    answer.set_result(reply)
