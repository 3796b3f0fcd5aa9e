"""UI sessions: `nvidia-cuda-mps-control` on the public sockets. Commands are forwarded one by one, as their sender.

The vendor's daemon serves one session at a time and drops the others: an interactive one would block the guard for its
whole duration. So the broker terminates sessions, and queues each of their commands.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

import mpsguard
from mpsguard.broker.handshake import Introduction, RefusedError, checked
from mpsguard.broker.lane_router import LaneRouter
from mpsguard.broker.relay import MAX_WORDS
from mpsguard.config import Policy
from mpsguard.control_api.event_stream import EventStream
from mpsguard.lanes import mps_protocol, settings
from mpsguard.lanes.command import Command, CommandFailedError, CommandReply
from mpsguard.lanes.lane import Lane
from mpsguard.lanes.lane_set import LaneSet
from mpsguard.lanes.mps_protocol import ProtocolError
from mpsguard.lanes.settings import Setting
from mpsguard.linux.sockets.packet_stream import PacketStream


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
        sender = introduction.sender if impersonate else None
        status = 0
        try:
            while (line := await self._next(front, introduction, idles)) is not None:
                reply = await self.run(Command(line, sender, privileged))
                for said in reply.lines:
                    await self._send(front, said)
                status = reply.exit_status
                if _is_quit(line) and not self._router.now().control_alive():
                    break
            await self._send(front, status)
            # Closing with unread input would reset the front, and the last messages to the peer would be lost: let
            # the peer close first.
            front.end_sending()
            async with asyncio.timeout(self._policy.handshake_deadline):
                for _ in range(MAX_WORDS):
                    if (await front.receive(mps_protocol.PACKET_LIMIT)).end:
                        break
        except CommandFailedError as error:
            raise RefusedError("failed", str(error)) from None
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            return

    async def _send(self, front: PacketStream, said: str | int) -> None:
        """Send a line of a reply, or the exit status; TimeoutError if the user does not read what was sent before."""
        async with asyncio.timeout(self._policy.handshake_deadline):
            await front.send(mps_protocol.encode_reply(said))

    async def run(self, command: Command) -> CommandReply:
        """Run one command, and apply and store its setting on every lane.

        Raises:
            CommandFailedError: the control daemon did not answer.
        """
        if command.line.split() == [mps_protocol.VERSION_COMMAND]:
            return CommandReply((mpsguard.__version__,), 0)
        lane = self._router.now()
        with suppress(TimeoutError):
            # Wait for a daemon that is being restarted; if it does not come up, the command fails with the reason.
            async with asyncio.timeout(self._policy.start_deadline):
                await lane.reachable()
        quits = _is_quit(command.line) and _is_privileged(command)
        if quits:
            self._events.publish(
                "lane_told_to_quit", self._name, pid=command.sender.pid if command.sender else os.getpid()
            )
            return await lane.quit(command)
        if not settings.moves_lever(command.line):
            return await lane.ask_for(command, self._policy.user_command_deadline)
        setting = settings.setting_touched_by(command.line)
        # Not while they are moved for a client of a service class.
        async with lane.levers.left_alone(_uid(command)):
            reply = await lane.ask_for(command, self._policy.user_command_deadline)
            # A user without the right that asks for what is set already has set nothing.
            kept = setting is not None and _is_privileged(command) and await lane.record(setting)
        if setting is not None and kept:
            await self._repeat(command, setting, lane)
        return reply

    async def _repeat(self, command: Command, setting: Setting, first: Lane) -> None:
        """Apply a setting to the other lanes: settings belong to the domain, and must survive a failover."""
        for lane in self._lanes.all:
            if lane is not first:
                try:
                    async with lane.levers.left_alone(_uid(command)):
                        await lane.ask_for(command, self._policy.command_deadline)
                        await lane.record(setting)
                except CommandFailedError as error:
                    self._events.publish("setting_not_repeated", self._name, lane=lane.spec.name, detail=str(error))

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
                packet = await front.receive(mps_protocol.PACKET_LIMIT)
            if packet.end:
                return None
            checked(packet, introduction.sender)
            line = mps_protocol.decode_command(packet.data)
        except ProtocolError as error:
            raise RefusedError("garbage", str(error)) from None
        except TimeoutError:
            raise RefusedError("silent", waits) from None
        if any(character < " " and character != "\t" for character in line):
            # The daemon writes commands verbatim into its log: with a line break, any user could forge lines of a
            # server.
            raise RefusedError("garbage", "control characters in a command")
        return line


def _uid(command: Command) -> int:
    return os.geteuid() if command.sender is None else command.sender.uid


def _is_privileged(command: Command) -> bool:
    """Return whether the control daemon takes settings, and quit, from the sender: root, or its own user."""
    return _uid(command) in (0, os.geteuid())


def _is_quit(line: str) -> bool:
    return line.split()[:1] == ["quit"]
