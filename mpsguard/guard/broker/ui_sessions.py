"""UI sessions: `nvidia-cuda-mps-control` on the public sockets. Commands are forwarded one by one, as their sender.

The vendor's daemon serves one session at a time and drops the others: an interactive one would block the guard for its
whole duration. So the broker terminates sessions, and queues each of their commands.

A session that is refused is told why, with a failing exit status. The vendor's program takes a connection that is just
closed for success (535.261.03, 550.163.01).
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import mpsguard
from mpsguard.guard import mps_values
from mpsguard.guard.broker.handshake import Introduction, RefusedError, checked
from mpsguard.guard.broker.lane_router import LaneRouter
from mpsguard.guard.broker.relay import MAX_WORDS
from mpsguard.guard.config import Policy
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.lanes import mps_protocol, settings
from mpsguard.guard.lanes.command import Command, CommandFailedError, CommandReply
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.lanes.lane_set import LaneSet
from mpsguard.guard.lanes.mps_protocol import ProtocolError
from mpsguard.guard.lanes.settings import Setting
from mpsguard.linux.identity import ROOT, Credentials, is_root
from mpsguard.linux.sockets.packet_stream import PacketStream

_NOBODY: Final = 65534
"""The kernel's overflow uid and gid, which own nothing."""
_REFUSED: Final = 1
"""Exit status of a session that was refused."""
_BLANKS: Final = str.maketrans("\r\v\f", "   ")
"""The vendor's daemon takes what isspace(3) knows as blanks: lines of Windows editors end in a carriage return."""


class UiSessions:
    """Serves the UI sessions of one domain."""

    def __init__(self, name: str, policy: Policy, lanes: LaneSet, router: LaneRouter, *, events: EventStream) -> None:
        self._name = name
        self._policy = policy
        self._lanes = lanes
        self._router = router
        self._events = events

    def configure(self, policy: Policy) -> None:
        """Use another policy, from each session's next command on."""
        self._policy = policy

    async def serve(
        self,
        front: PacketStream,
        introduction: Introduction,
        *,
        privileged: bool,
        impersonate: bool,
        idles: Callable[[bool], None],
    ) -> None:
        """Serve one session until its user ends it.

        Args:
            front: the connection to the session's process.
            introduction: the peer's introduction.
            privileged: whether the peer used the privileged socket.
            impersonate: whether commands are sent with the peer's credentials.
            idles: called with True when the session begins to wait for its user, and with False when it ceases to.

        Raises:
            RefusedError: the peer broke the protocol or was idle for longer than the policy allows, or no daemon
                answered.
        """
        try:
            try:
                status, refusal = await self._commands(front, introduction, privileged, impersonate, idles), None
            except CommandFailedError as error:
                status, refusal = _REFUSED, RefusedError("failed", str(error))
            except RefusedError as error:
                status, refusal = _REFUSED, error
            if refusal is not None:
                with suppress(OSError):  # what it has done counts, whether it listens or not
                    await self._send(front, f"mpsguard: {refusal}")
                    await self._end(front, status)
                raise refusal
            await self._end(front, status)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            return

    async def _commands(
        self,
        front: PacketStream,
        introduction: Introduction,
        privileged: bool,
        impersonate: bool,
        idles: Callable[[bool], None],
    ) -> int:
        """Run a session's commands until its user ends it, and return the last exit status."""
        status = 0
        while (line := await self._next(front, introduction, idles)) is not None:
            sender = self._sender(introduction.sender, front) if impersonate else None
            command = Command(line, sender, privileged and not _is_stranger(sender))
            own = self._router.answer(line, introduction.sender.pid)
            reply = await self.run(command) if own is None else CommandReply((own,), 0)
            for said in reply.lines:
                await self._send(front, said)
            status = reply.exit_status
            # A session that waits for a command is closed as the guard ends, and this one has yet to get its status.
            if _is_quit(line) and _is_privileged(command) and await self._router.now().has_died():
                break
        return status

    async def _end(self, front: PacketStream, status: int) -> None:
        """Send the exit status, and let the peer close first.

        Closing with unread input would reset the connection, and the last messages to the peer would be lost.
        """
        await self._send(front, status)
        front.end_sending()
        async with asyncio.timeout(self._policy.handshake_deadline):
            for _ in range(MAX_WORDS):
                if (await front.receive(mps_protocol.PACKET_LIMIT)).end:
                    break

    async def _send(self, front: PacketStream, said: str | int) -> None:
        """Send a line of a reply, or the exit status; TimeoutError if the user does not read what was sent before."""
        async with asyncio.timeout(self._policy.handshake_deadline):
            await front.send(mps_protocol.encode_reply(said))

    async def run(self, command: Command) -> CommandReply:
        """Run one command, and apply and store its setting on every lane.

        Raises:
            CommandFailedError: the control daemon did not answer.
        """
        lane = self._router.now()
        if command.line.split() == [mps_protocol.VERSION_COMMAND]:
            return CommandReply((mpsguard.__version__, *([mps_protocol.QUITS] if lane.quitting.is_set() else [])), 0)
        with suppress(TimeoutError):
            # Wait for a daemon that is being restarted; if it does not come up, the command fails with the reason.
            async with asyncio.timeout(self._policy.start_deadline):
                await lane.reachable()
        quits = _is_quit(command.line) and _is_privileged(command)
        if quits:
            pid = command.sender.pid if command.sender else os.getpid()
            self._events.publish("lane_told_to_quit", self._name, user=_user(command), pid=pid)
            return await lane.quit(command)
        if not settings.moves_lever(command.line):
            return await lane.ask_for(command, self._policy.user_command_deadline)
        # Not while they are moved for a client of a service class.
        reply, kept = await lane.setting_commands.run(
            command, _user(command), self._policy.user_command_deadline, keeps=_is_privileged(command)
        )
        if kept is not None:
            await self._repeat(command, kept, lane)
        return reply

    async def _repeat(self, command: Command, setting: Setting, first: Lane) -> None:
        """Apply a setting to the other lanes: settings belong to the domain, and must survive a failover."""
        for lane in self._lanes.all:
            if lane is not first:
                try:
                    await lane.setting_commands.repeat(command, setting, _user(command))
                except CommandFailedError as error:
                    self._events.publish("setting_not_repeated", self._name, lane=lane.spec.name, detail=str(error))

    def _sender(self, introduced: Credentials, front: PacketStream) -> Credentials:
        """Return the credentials to send a command with: for root of a container those that own nothing.

        The daemon would take that for root. Asked for each command: the process may have entered a container since.
        """
        now = front.peer_now() if introduced.uid == ROOT else introduced
        if now.container_root is None:
            return introduced
        if self._policy.privileged_containers and front.peer_is_admin():
            return Credentials(introduced.pid, introduced.uid, introduced.gid)
        return Credentials(introduced.pid, _NOBODY, _NOBODY, now.container_root)

    async def _next(self, front: PacketStream, introduction: Introduction, idles: Callable[[bool], None]) -> str | None:
        """Return the session's next command; None at its end."""
        waits = "no command within the time that a command line may idle"
        try:
            idles(True)
            async with asyncio.timeout(self._policy.command_line_idle):
                packet = await front.receive(mps_protocol.WORD_LIMIT)
            idles(False)
            waits = "a command's length without its text"
            if packet.end:
                return None
            checked(packet, introduction.sender)
            if not mps_protocol.command_length(packet.data):
                return None
            async with asyncio.timeout(self._policy.handshake_deadline):
                packet = await front.receive(mps_protocol.COMMAND_LIMIT)
            if packet.end:
                return None
            checked(packet, introduction.sender)
            line = mps_protocol.decode_command(packet.data).translate(_BLANKS).rstrip(" \t")
        except ProtocolError as error:
            raise RefusedError("garbage", str(error)) from None
        except TimeoutError:
            raise RefusedError("silent", waits) from None
        if any(character < " " and character != "\t" for character in line):
            # The daemon writes commands verbatim into its log: with a line break, any user could forge lines of a
            # server.
            raise RefusedError("garbage", "a command has control characters")
        return line


def _is_stranger(sender: Credentials | None) -> bool:
    return sender is not None and sender.container_root is not None


def _user(command: Command) -> int:
    return os.geteuid() if command.sender is None else command.sender.user


def _is_privileged(command: Command) -> bool:
    """Return whether the control daemon takes settings (550), and quit, from the sender.

    It does by its privileged socket alone, also from root (535, 550).
    """
    return command.privileged and (is_root(_user(command)) or _user(command) == os.geteuid())


def _is_quit(line: str) -> bool:
    return mps_values.command(line)[0] == "quit"
