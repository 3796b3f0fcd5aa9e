"""One UI connection: command lines in, reply lines out.

As seen on driver 580.159.04: int64 length and the line with its newline and NUL, as often as wanted, then int64 0; each
reply line is int32 0 and text, and int32 1 with the exit status ends the session.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from fault_injection.sim.commands import AFTER_535, TABLE, Call, refusal
from fault_injection.sim.link import ServerLostError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fault_injection.sim.control import ControlDaemon
    from fault_injection.sim.wire import Channel, Identity

_TEXT = struct.pack("i", 0)
_END = struct.pack("i", 1)


class Session:
    """A UI that the daemon listens to."""

    def __init__(self, daemon: ControlDaemon, channel: Channel, identity: Identity) -> None:
        self._daemon = daemon
        self._channel = channel
        self._identity = identity
        self._waits_for_quit = False
        self.settled = False

    def serve(self) -> None:
        """Take what the UI sent."""
        length = self._channel.receive_int64()
        if length:
            line = self._channel.receive().data.removesuffix(b"\0").decode(errors="replace")
            self._daemon.say(f"Cmd:{line}")
            self._run(line.split())
        else:
            self.settled = True
            self._daemon.forget(self._channel.fileno())
            if not self._waits_for_quit:
                self.finish(0)
                self._daemon.say("UI closed")

    def finish(self, status: int) -> None:
        """Send the exit status and close; only a settled session, or the UI would see a reset instead."""
        self._channel.send(_END, struct.pack("i", status))
        self._channel.close()

    def _run(self, words: list[str]) -> None:
        name, arguments = (words[0], words[1:]) if words else ("", [])
        self._daemon.script.wait(f"command.{name}")
        asked = self._daemon.script.read(f"command.{name}")
        if asked and "crash" in asked:
            self._daemon.crash(asked["crash"])
        if self._daemon.quitting():
            self._reply("The MPS control daemon is shutting down")
        elif name == "quit":
            self._quit(arguments)
        else:
            try:
                for line in self._answer(name, arguments):
                    self._reply(line)
            except ServerLostError:
                self._reply("Internal error")
            self._daemon.schedule()

    def _answer(self, name: str, arguments: list[str]) -> Iterator[str]:
        command = TABLE.get(name)
        lacked = self._daemon.legacy535 and name in AFTER_535
        if command is None or lacked or self._daemon.script.read(f"lack.{name}") is not None:
            yield f'Unknown command "{name}"'
        elif command.setter and self._identity.uid not in (0, os.geteuid()):
            yield refusal(self._identity.uid)
            yield from command.denied
        else:
            daemon = self._daemon
            yield from command.run(Call(arguments, daemon.fleet, daemon.defaults, daemon.say))

    def _quit(self, arguments: list[str]) -> None:
        if self._identity.uid not in (0, os.geteuid()):
            self._reply("Not enough privilege to execute quit command")
            return
        self._waits_for_quit = True
        timed = arguments[:1] == ["-t"] and arguments[1:2] and arguments[1].isdecimal()
        self._daemon.quit(self, int(arguments[1]) if timed else None)

    def _reply(self, text: str) -> None:
        self._daemon.say(text)
        self._channel.send(_TEXT, text.encode())
