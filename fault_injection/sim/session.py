"""One UI connection: command lines in, reply lines out.

As seen on driver 580.159.04: int64 length and the line with its newline and NUL, as often as wanted, then int64 0; each
reply line is int32 0 and text, and int32 1 with the exit status ends the session.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Protocol

from fault_injection.sim import scan
from fault_injection.sim.commands import TABLE, Call
from fault_injection.sim.link import ServerLostError
from fault_injection.sim.scan import Scanner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fault_injection.sim.driver import Driver
    from fault_injection.sim.fleet import Fleet
    from fault_injection.sim.script import Script
    from fault_injection.sim.settings import Defaults
    from fault_injection.sim.wire import Channel, Identity

_TEXT = struct.pack("i", 0)
_END = struct.pack("i", 1)
_FATAL = 4150
"""Bytes of a command that end the daemon: of 535 and 550, 4,102 do not, and 4,202 do."""


class Daemon(Protocol):
    """What a session asks of the daemon that listens to it."""

    script: Script
    driver: Driver
    defaults: Defaults
    fleet: Fleet

    def say(self, text: str) -> None:
        """Write one line to control.log."""

    def quit(self, session: Session, timeout: int | None) -> None:
        """Shut down: at once if idle, else when the clients are gone or the time is up."""

    def quitting(self) -> bool:
        """Return whether a `quit` command was received."""

    def schedule(self) -> None:
        """Serve the clients that can be served now."""

    def crash(self, victim: str) -> None:
        """Kill the daemon or its servers, as the script demands."""

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor."""


class Session:
    """A UI that the daemon listens to."""

    def __init__(self, daemon: Daemon, channel: Channel, identity: Identity, *, privileged: bool) -> None:
        self._daemon = daemon
        self._channel = channel
        self._identity = identity
        self._privileged = privileged
        self._waits_for_quit = False
        self.settled = False

    def serve(self) -> None:
        """Take what the UI sent."""
        length = self._channel.receive_int64()
        if length:
            text = self._channel.receive().data
            if len(text) > _FATAL:
                os.abort()
            line = text.removesuffix(b"\0").decode(errors="surrogateescape")
            self._daemon.say(f"Cmd:{line}")
            self._run(*scan.command(line))
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

    def _run(self, name: str, text: str) -> None:
        self._daemon.script.wait(f"command.{name}")
        asked = self._daemon.script.read(f"command.{name}")
        if asked and "crash" in asked:
            self._daemon.crash(asked["crash"])
        if self._daemon.quitting():
            self._reply("The MPS control daemon is shutting down")
        elif name == "quit":
            self._quit(text)
        else:
            try:
                for line in self._answer(name, text):
                    self._reply(line)
            except ServerLostError:
                self._reply("Internal error")
            self._daemon.schedule()

    def _answer(self, name: str, text: str) -> Iterator[str]:
        daemon = self._daemon
        lacked = name in daemon.driver.lacks or daemon.script.read(f"lack.{name}") is not None
        if name not in TABLE or lacked:
            yield f'Unknown command "{name}"'
        else:
            call = Call(
                text,
                self._identity.uid,
                self._privileged,
                daemon.fleet,
                daemon.defaults,
                daemon.driver,
                daemon.say,
            )
            yield from TABLE[name](call)

    def _quit(self, text: str) -> None:
        if not self._privileged:
            self._reply("Not enough privilege to execute quit command")
            return
        self._waits_for_quit = True
        arguments = Scanner(text)
        timeout = arguments.integer() if arguments.word() == "-t" else None
        self._daemon.quit(self, None if timeout is None else timeout % (1 << 32))

    def _reply(self, text: str) -> None:
        self._daemon.say(text)
        self._channel.send(_TEXT, text.encode(errors="surrogateescape"))
