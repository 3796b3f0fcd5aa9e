"""The launcher: a child process of the guard that starts control daemons, and does nothing else.

A control daemon inherits the capabilities and the system call filter of the process that starts it, and the vendor's
programs need more than the guard does (nvidia-modprobe loads kernel modules and makes device nodes). The launcher keeps
those rights. It never reads a byte of a client: its only input is the guard's `messages`, in which the guard can only
choose one lane of a table that was sent before the first client connected.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from mpsguard.guard.lanes import control_process
from mpsguard.guard.lanes.control_process import LaneStartError, Launch
from mpsguard.linux.closing import Closing
from mpsguard.linux.processes.helper_process import HelperProcess, module_command
from mpsguard.linux.tasks import Owner

MAX_BYTES: Final = 1 << 16
"""Size of one packet. A lane takes some 300 bytes of the table, and an answer at most 4 KiB of the control daemon's
output: this is enough for 100 domains with a standby each, and below the kernel's default socket buffer (208 KiB)."""
_GRACE: Final = 10.0
"""Seconds for an answer beyond the deadline of the start itself, which the launcher measures. They cover the killing of
a daemon that exceeded it, and the launcher's own start, which takes 0.1 s on an idle machine."""
_LEAVE: Final = 5.0
"""Seconds for the launcher to end after the guard has closed its socket, before it is killed; it takes 0.05 s."""
_DYING: Final = 5.0
"""Seconds for the end after SIGKILL."""


class LaunchTable(msgspec.Struct, frozen=True):
    """The first packet: every lane the launcher may start."""

    lanes: tuple[Launch, ...]


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start the control daemon of a lane in the table."""

    number: int
    """Chosen by the guard; the answer carries it."""
    lane: str


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Cancel a start. There is no answer to this message."""

    number: int


class Answer(msgspec.Struct, frozen=True):
    """The result of a start."""

    number: int
    error: str | None = None
    """Text of the LaneStartError; None if the control daemon is up."""


Request = Start | Cancel


class LauncherEndedError(Exception):
    """The launcher cannot be started, or it has ended; without it no lane can be started."""


class Launcher(Closing):
    """The guard's interface to the launcher. Owns the process and the socket to it."""

    def __init__(self, lanes: Sequence[Launch]) -> None:
        """Start the process; call this before privileges are dropped. Raises LauncherEndedError."""
        self._lanes = frozenset(lanes)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._socket.setblocking(False)
                self._socket.send(msgspec.msgpack.encode(LaunchTable(tuple(lanes))))
                self._process = HelperProcess(
                    module_command("mpsguard.guard.processes.launcher"),
                    # The control daemons inherit the guard's environment (`control_process.environment_for`).
                    os.environ,
                    stdin=theirs.fileno(),
                    stderr=None,
                )
            except OSError as error:
                self._socket.close()
                raise LauncherEndedError(f"the launcher cannot be started: {error.strerror}") from None
        self._numbers = 0
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    @property
    def pid(self) -> int:
        """Process id of the launcher."""
        return self._process.pid

    async def run(self) -> None:
        """Dispatch answers until cancelled.

        Raises:
            LauncherEndedError: the process has ended.
        """
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(self._socket, MAX_BYTES):
                answer = msgspec.msgpack.decode(data, type=Answer)
                waiting = self._waiting.get(answer.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except ConnectionError:
            pass
        raise LauncherEndedError("the launcher has ended: no lane can be started")

    async def start(self, launch: Launch) -> None:
        """Start a lane's control daemon; cancellation breaks the start off.

        Raises:
            LaneStartError: it could not be started in time.
        """
        if launch not in self._lanes:
            raise LaneStartError(f"{launch.name}: not one of the launcher's lanes")
        loop = asyncio.get_running_loop()
        self._numbers += 1
        number = self._numbers
        waiting = self._waiting[number] = loop.create_future()
        try:
            async with asyncio.timeout(launch.start_deadline + _GRACE):
                await self._send(Start(number, launch.name))
                answer = await waiting
        except TimeoutError:
            raise LaneStartError("the launcher does not answer") from None
        except OSError as error:
            raise LaneStartError(f"the launcher cannot be asked: {error.strerror}") from None
        finally:
            del self._waiting[number]
            if not waiting.done() or waiting.cancelled():
                with suppress(OSError):
                    self._socket.send(msgspec.msgpack.encode(Cancel(number)))
        if answer.error is not None:
            raise LaneStartError(answer.error)

    async def _send(self, request: Request) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, msgspec.msgpack.encode(request))

    def close(self) -> None:
        """End the process, within _LEAVE seconds. The control daemons keep running."""
        self._socket.close()
        self._process.end(_LEAVE, _DYING)


def main() -> None:
    """Serve requests to start lanes on standard input, a socket, until the guard closes it."""
    with socket.socket(fileno=sys.stdin.fileno()) as guard:
        guard.setblocking(False)
        asyncio.run(_serve(guard))


async def _serve(guard: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    table = msgspec.msgpack.decode(await loop.sock_recv(guard, MAX_BYTES), type=LaunchTable)
    lanes = {launch.name: launch for launch in table.lanes}
    starting: dict[int, asyncio.Task[None]] = {}
    async with Owner() as owner:
        try:
            while data := await loop.sock_recv(guard, MAX_BYTES):
                request: Request = msgspec.msgpack.decode(data, type=Request)
                if isinstance(request, Start):
                    task = starting[request.number] = owner.spawn(_answer(guard, request, lanes))
                    task.add_done_callback(lambda _, number=request.number: starting.pop(number, None))  # type: ignore[misc]
                elif request.number in starting:
                    starting[request.number].cancel()
        except ConnectionError:
            # The guard was killed with unread answers.
            pass


async def _answer(guard: socket.socket, request: Start, lanes: dict[str, Launch]) -> None:
    error = None
    try:
        if request.lane not in lanes:
            raise LaneStartError(f"{request.lane}: not one of the launcher's lanes")
        await control_process.launch(lanes[request.lane])
    except (LaneStartError, OSError) as failure:
        error = str(failure)
    with suppress(ConnectionError):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(guard, msgspec.msgpack.encode(Answer(request.number, error)))


if __name__ == "__main__":
    main()
