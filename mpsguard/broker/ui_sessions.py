"""Command lines (`nvidia-cuda-mps-control`) at the public sockets: their commands, one by one, under their own names.

The vendor's daemon serves one command line at a time and drops the others; an interactive one would keep the guard
out for as long as somebody sits at it. So a session ends here, and each of its commands takes its turn among all.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

from mpsguard.broker.handshake import Introduction, RefusedError, checked
from mpsguard.broker.lane_router import LaneRouter
from mpsguard.broker.relay import MAX_WORDS
from mpsguard.config import Policy
from mpsguard.control_api.event_stream import EventStream
from mpsguard.lanes import mps_protocol, settings
from mpsguard.lanes.command import Command, CommandFailedError, Reply
from mpsguard.lanes.lane import Lane
from mpsguard.lanes.lane_set import LaneSet
from mpsguard.lanes.mps_protocol import ProtocolError
from mpsguard.lanes.settings import Setting
from mpsguard.linux.packet_stream import PacketStream


class UiSessions:
    """Serves the command lines of one domain."""

    def __init__(self, name: str, policy: Policy, lanes: LaneSet, way: LaneRouter, *, events: EventStream) -> None:
        self._name = name
        self._policy = policy
        self._lanes = lanes
        self._way = way
        self._events = events

    async def serve(
        self,
        front: PacketStream,
        opening: Introduction,
        *,
        privileged: bool,
        impersonate: bool,
        idles: Callable[[bool], None],
    ) -> None:
        """One session until its user ends it.

        ``idles`` is told when it begins and ceases to wait for its user. Raises RefusedError if it breaks the protocol,
        waits for longer than the policy has it, or no daemon answers.
        """
        sender = opening.sender if impersonate else None
        status = 0
        try:
            while (line := await self._next(front, opening, idles)) is not None:
                reply = await self.run(Command(line, sender, privileged))
                for said in reply.lines:
                    await self._send(front, said)
                status = reply.exit_status
                if _is_quit(line) and not self._way.now().control_alive():
                    break
            await self._send(front, status)
            # Closed with words unread, the front would be reset and our last ones lost: let the user close first.
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

    async def run(self, command: Command) -> Reply:
        """Carry out one command, and keep what it changed, on every lane; raises CommandFailedError."""
        lane = self._way.now()
        with suppress(TimeoutError):
            # A daemon that is being restarted is worth a wait; one that does not come is for the asking to find out.
            async with asyncio.timeout(self._policy.start_deadline):
                await lane.reachable()
        quits = _is_quit(command.line) and (command.sender is None or command.sender.uid in (0, os.geteuid()))
        if quits:
            self._events.publish(
                "lane_told_to_quit", self._name, pid=command.sender.pid if command.sender else os.getpid()
            )
            return await lane.quit(command)
        reply = await lane.ask_for(command, self._policy.user_command_deadline)
        setting = settings.setting_touched_by(command.line)
        if setting is not None:
            await lane.record(setting)
            await self._repeat(command, setting, lane)
        return reply

    async def _repeat(self, command: Command, setting: Setting, first: Lane) -> None:
        """What a user sets is the domain's: work goes on under it when the lanes have changed places."""
        for lane in self._lanes.all:
            if lane is not first:
                try:
                    await lane.ask_for(command, self._policy.command_deadline)
                except CommandFailedError as error:
                    self._events.publish("setting_not_repeated", self._name, lane=lane.spec.name, detail=str(error))
                else:
                    await lane.record(setting)

    async def _next(self, front: PacketStream, opening: Introduction, idles: Callable[[bool], None]) -> str | None:
        """The session's next command; None at its end."""
        waits = "no command within the time that a command line may idle"
        try:
            idles(True)
            async with asyncio.timeout(self._policy.command_line_idle):
                packet = await front.receive(mps_protocol.WORD_LIMIT)
            idles(False)
            waits = "a command's length without its text"
            if packet.end:
                return None
            checked(packet, opening.sender)
            if not mps_protocol.command_length(packet.data):
                return None
            async with asyncio.timeout(self._policy.handshake_deadline):
                packet = await front.receive(mps_protocol.PACKET_LIMIT)
            if packet.end:
                return None
            checked(packet, opening.sender)
            line = mps_protocol.decode_command(packet.data)
        except ProtocolError as error:
            raise RefusedError("garbage", str(error)) from None
        except TimeoutError:
            raise RefusedError("silent", waits) from None
        if any(character < " " and character != "\t" for character in line):
            # The daemon writes commands into its log as they are: with a line break in one, anybody could write there
            # what a server never said.
            raise RefusedError("garbage", "control characters in a command")
        return line


def _is_quit(line: str) -> bool:
    return line.split()[:1] == ["quit"]
