"""Commands to one stock control daemon: one worker, one at a time, each with a deadline that counts from the asking.

One at a time is not only order: while one command line is connected, the vendor's daemon drops every other one (seen
on 535, 550 and 580). So users' commands go through the same worker as the guard's own, which go first.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from mpsguard.guard.lanes import mps_protocol
from mpsguard.guard.lanes.mps_protocol import PeerKind, ProtocolError
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.identity import Credentials
from mpsguard.linux.pacing import backoff
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.sockets.seqpacket import Packet
from mpsguard.linux.tasks import Owner, beside
from mpsguard.linux.user_queue import UserQueue

MAX_OWN: Final = 256
"""Of the guard's own: it asks some ten at once, each with a deadline of seconds; so many means that nothing answers."""
MAX_OF_A_USER: Final = 16
"""A command takes milliseconds: more than sixteen sessions of one user that wait at once are no person's."""
MAX_OF_USERS: Final = 256
"""Of all users together; beyond that, one more is taken only of a user that has none waiting."""

T = TypeVar("T")
_MAX_LINES: Final = 4096
_FIRST_RETRY: Final = 0.01
"""Seconds until the next try after the daemon dropped us: another command line is connected, past the guard."""
_LONGEST_RETRY: Final = 0.25


class QueueFullError(Exception):
    """One command line of this user waits already."""


class CommandQueue(Generic[T]):
    """Entries by owner: None is the guard. One of each user stands in line, its others behind that."""

    def __init__(self) -> None:
        self._own: deque[T] = deque()
        self._users: UserQueue[int, T] = UserQueue()
        self._filled = asyncio.Event()

    def put(self, owner: int | None, entry: T) -> None:
        """Add one; QueueFullError if its owner has its share waiting."""
        if owner is None:
            if len(self._own) >= MAX_OWN:
                raise QueueFullError(f"{MAX_OWN} commands wait already")
            self._own.append(entry)
        else:
            waiting = self._users.of(owner)
            if waiting >= MAX_OF_A_USER:
                raise QueueFullError(f"{MAX_OF_A_USER} commands of this user wait already")
            if waiting and len(self._users) >= MAX_OF_USERS:
                raise QueueFullError(f"{MAX_OF_USERS} commands wait already")
            self._users.add(owner, entry)
        self._filled.set()

    async def get(self) -> T:
        """Take the next one, as soon as there is one."""
        while (entry := self.take()) is None:
            self._filled.clear()
            await self._filled.wait()
        return entry

    def take(self) -> T | None:
        """Take the next one; None if there is none."""
        if self._own:
            return self._own.popleft()
        following = self._users.take()
        return None if following is None else following[1]


class CommandFailedError(Exception):
    """The control daemon could not be reached, broke off, or spoke another protocol."""


class CommandTimeoutError(CommandFailedError):
    """The control daemon did not answer within the deadline."""


class CommandDroppedError(CommandTimeoutError):
    """The control daemon closed every connection within the deadline: another command line is connected to it."""


class CommandReply(msgspec.Struct, frozen=True):
    """What the control daemon answered to one command."""

    lines: tuple[str, ...]
    exit_status: int


_REFUSALS: Final = re.compile(
    r"Unknown command |Invalid |Insufficient privileges |Not enough privilege |Server (-?\d+ )?(not found|is <busy>)"
    r"|A user id \(UID\) is required|A server PID is required|Internal error|The MPS control daemon is shutting down",
    re.IGNORECASE,
)
"""How the control daemon's answer to a command that it does not carry out begins (535.261.03, 550.163.01). Its exit
status is 0 all the same."""


def is_refusal(reply: CommandReply) -> bool:
    """Return whether the control daemon says that it did not carry a command out."""
    return reply.exit_status != 0 or bool(reply.lines and _REFUSALS.match(reply.lines[0]))


class Command(msgspec.Struct, frozen=True):
    """One command line and the user that sent it."""

    line: str
    sender: Credentials | None = None
    """The user's process to introduce; None for the guard itself."""
    privileged: bool = True
    """Whether it goes to ``control_privileged``, as a root user's front end does, or to ``control``."""


class _DroppedError(Exception):
    """The daemon closed the connection before it answered anything."""


async def ask(
    pipe_directory: Path,
    command: Command,
    deadline: float | None,
    greeting: bytes | None = None,
    *,
    greeted_within: float | None = None,
    socket_path: Path | None = None,
) -> CommandReply:
    """Send one command as the vendor's own front end does, and collect the reply.

    Args:
        pipe_directory: the control daemon's.
        command: what is sent.
        deadline: seconds; None: no limit.
        greeting: the daemon's, if it is known: then all that the daemon reads is sent before it greets. It serves no
            other peer meanwhile (driver 580.159.04), so nothing of that shall wait for the guard's event loop.
        greeted_within: seconds until a connection is greeted, and not dropped then; None: as long as the deadline.
        socket_path: of the daemon's socket, where it has lost its name in the directory.

    Raises:
        CommandTimeoutError: after ``deadline`` or ``greeted_within`` seconds.
        CommandDroppedError: likewise, but the daemon was there.
        CommandFailedError: there is no daemon to ask, or it greets differently.
    """
    path = socket_path or pipe_directory / ("control_privileged" if command.privileged else "control")
    loop = asyncio.get_running_loop()
    began = loop.time()
    due = None if deadline is None else began + deadline
    greeted_by = due if greeted_within is None else began + greeted_within
    drops = 0
    try:
        async with asyncio.timeout_at(greeted_by) as limit:
            while True:
                try:
                    return await _exchange(path, command, greeting, lambda: limit.reschedule(due))
                except _DroppedError:
                    limit.reschedule(greeted_by)
                    drops += 1
                    await asyncio.sleep(backoff(drops - 1, _FIRST_RETRY, _LONGEST_RETRY))
    except TimeoutError:
        if drops:
            busy = f"{command.line!r} to {pipe_directory}: busy, {drops} connections were dropped"
            raise CommandDroppedError(busy) from None
        raise CommandTimeoutError(f"no answer to {command.line!r} within {loop.time() - began:.3g} s") from None
    except OSError as error:
        raise CommandFailedError(f"{command.line!r} to {pipe_directory}: {error.strerror or error}") from None
    except ProtocolError as error:
        raise CommandFailedError(f"{command.line!r} to {pipe_directory}: {error}") from None


async def greeting(pipe_directory: Path, deadline: float) -> bytes:
    """How the control daemon greets; raises like `ask`. The connection is given up after it, as clients' first one."""
    try:
        async with asyncio.timeout(deadline):
            with await PacketStream.connect(str(pipe_directory / "control")) as stream:
                return mps_protocol.check_greeting((await _receive(stream)).data)
    except TimeoutError:
        raise CommandTimeoutError(f"no greeting within {deadline:g} s") from None
    except (OSError, ProtocolError, _DroppedError) as error:
        raise CommandFailedError(f"greeting: {error}") from None


async def _exchange(path: Path, command: Command, greeting: bytes | None, greeted: Callable[[], None]) -> CommandReply:
    with await PacketStream.connect(str(path)) as stream:
        if greeting is not None:
            await _say(stream, command, greeting)
        word = mps_protocol.check_greeting((await _receive(stream)).data)
        greeted()
        if greeting is None:
            await _say(stream, command, word)
        elif word != greeting:
            # It may have taken the command nevertheless: 535 and 550 do not look at the word of the credentials.
            raise ProtocolError(f"greeted with {word!r} where {greeting!r} was known")
        lines: list[str] = []
        while len(lines) < _MAX_LINES:
            packet = await stream.receive(mps_protocol.PACKET_LIMIT)
            close_all(packet.fds)
            if packet.end:
                if lines:
                    raise ProtocolError("the control daemon broke off its answer")
                raise _DroppedError("the control daemon closed the connection")
            said = mps_protocol.decode_reply(packet.data)
            if isinstance(said, int):
                return CommandReply(tuple(lines), said)
            lines.append(said)
        raise ProtocolError(f"more than {_MAX_LINES} lines of reply")


async def _say(stream: PacketStream, command: Command, greeting: bytes) -> None:
    # If it has closed at once, what it has to say about that, if anything, is still to be read.
    with suppress(BrokenPipeError, ConnectionResetError):
        for message in (
            mps_protocol.credentials_word(greeting),
            mps_protocol.encode_kind(PeerKind.UI),
            *mps_protocol.encode_command(command.line),
            mps_protocol.END_OF_COMMANDS,
        ):
            await stream.send(message, sender=command.sender)


async def _receive(stream: PacketStream) -> Packet:
    packet = await stream.receive(mps_protocol.PACKET_LIMIT)
    close_all(packet.fds)
    if packet.end:
        raise _DroppedError("the control daemon closed the connection")
    return packet


class CommandWorker:
    """Runs the commands to one lane in order. Owns a task once it is asked. A hang costs the asker its deadline."""

    def __init__(
        self, pipe_directory: Path, timed_out: Callable[[str], None], greeting: Callable[[], bytes | None]
    ) -> None:
        """Create it, without a task: its owner may end before it has asked anything.

        Args:
            pipe_directory: the control daemon's.
            timed_out: is told of every command that got no answer in time.
            greeting: returns the control daemon's; None as long as it is not known.
        """
        self._pipe_directory = pipe_directory
        self._greeting = greeting
        self._timed_out = timed_out
        self._queue: CommandQueue[tuple[Command, float | None, asyncio.Future[CommandReply]]] = CommandQueue()
        self._closed = False
        self._worker = Owner()

    async def ask(self, command: Command, deadline: float | None) -> CommandReply:
        """Queue a command and await its reply; raises as the function `ask`, or at once when too many wait.

        Cancelling the wait takes the command back if it has not begun, and breaks it off if it has.
        """
        if self._closed:
            raise _given_up(command)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[CommandReply] = loop.create_future()
        due = None if deadline is None else loop.time() + deadline
        try:
            self._queue.put(None if command.sender is None else command.sender.user, (command, due, answer))
        except QueueFullError as error:
            raise CommandFailedError(f"{command.line!r}: {error}") from None
        if not len(self._worker):
            self._worker.keep(f"commands {self._pipe_directory}", self._run)
        return await answer

    async def close(self) -> None:
        """End the worker. A caller that still waits for an answer, or asks later, gets CommandFailedError."""
        self._closed = True
        await self._worker.end()
        while (waiting := self._queue.take()) is not None:
            command, _, answer = waiting
            if not answer.done():
                answer.set_exception(_given_up(command))

    async def _run(self) -> None:
        while True:
            command, due, answer = await self._queue.get()
            if answer.done():
                continue
            try:
                async with beside(self._ask(command, due)) as (exchange,):
                    await asyncio.wait({exchange, answer}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                # Also when this task is cancelled just as the answer came: a caller waits for it.
                _settle(answer, exchange, command)

    async def _ask(self, command: Command, due: float | None) -> CommandReply:
        left = None if due is None else max(due - asyncio.get_running_loop().time(), 0.0)
        try:
            return await ask(self._pipe_directory, command, left, self._greeting())
        except CommandTimeoutError as error:
            self._timed_out(str(error))
            raise


def _settle(answer: asyncio.Future[CommandReply], exchange: asyncio.Task[CommandReply], command: Command) -> None:
    """Give the outcome of an exchange that is over to its caller, if that still waits."""
    error = _given_up(command) if exchange.cancelled() else exchange.exception()
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(exchange.result())


def _given_up(command: Command) -> CommandFailedError:
    return CommandFailedError(f"{command.line!r}: the lane is being given up")
