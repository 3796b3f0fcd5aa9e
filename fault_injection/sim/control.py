"""The simulated control daemon: one thread, one poll loop, blocking handshakes.

Like the vendor's (driver 580.159.04) it reads a new connection's credentials, a client's last acknowledgement, a
starting server's registration and a server's answers with blocking calls: a peer that is silent at such a point blocks
all others. The guard exists to keep untrusted peers away from these points, so the simulation has them.
"""

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from fault_injection.sim.directory import PipeDirectory
from fault_injection.sim.driver import BRANCHES, NEWEST
from fault_injection.sim.fleet import Fleet, Server
from fault_injection.sim.link import PERCENTAGE, REGISTRATION, Link
from fault_injection.sim.recorder import Log, Origin
from fault_injection.sim.script import Script
from fault_injection.sim.session import Session
from fault_injection.sim.settings import Defaults
from fault_injection.sim.wire import CREDENTIALS, DESCRIPTOR, HELLO, Channel, Identity, Peer

_LONG = 1e6
"""Seconds that no daemon lives."""


class Waiting(NamedTuple):
    """A client that was held back because no server serves its user yet."""

    channel: Channel
    identity: Identity


class ControlDaemon:
    """The control daemon of one pipe directory."""

    def __init__(self, directory: PipeDirectory, log: Log, *, multiuser: bool) -> None:
        self.script = Script(directory.root)
        branch = (self.script.read("driver") or {}).get("branch", NEWEST)
        self.driver = BRANCHES[branch]
        self.defaults = Defaults()
        self.log = log
        self.fleet = Fleet(log, multiuser)
        self.pending: list[Waiting] = []
        self._selector = selectors.DefaultSelector()
        self._quitter: Session | None = None
        self._force_at: float | None = None
        public, privileged = directory.listen()
        self._watch(public.fileno(), lambda: self._accept(public, privileged=False))
        self._watch(privileged.fileno(), lambda: self._accept(privileged, privileged=True))

    def say(self, text: str) -> None:
        """Write one line to control.log."""
        self.log.say(Origin.CONTROL, text)

    def run(self) -> Session:
        """Serve until a `quit` command and the end of all servers; return its session, which waits for the answer."""
        while True:
            if self._quitter is not None and self._quitter.settled and not self.fleet.servers:
                return self._quitter
            for key, _events in self._selector.select(self._timeout()):
                act: Callable[[], None] = key.data
                if self._selector.get_map().get(key.fd) is key:
                    act()
            self.fleet.tick()
            if self._force_at is not None and time.monotonic() >= self._force_at:
                self._force_at = None
                for server in self.fleet.servers:
                    self.fleet.kill(server)

    def quit(self, session: Session, timeout: int | None) -> None:
        """Shut down: at once if idle, else when the clients are gone or the time is up."""
        self._quitter = session
        if timeout is not None:
            self.say(f"quit command issued with timeout of {timeout}")
            self._force_at = time.monotonic() + min(timeout, _LONG)
        for waiting in self.pending:
            waiting.channel.close()
        self.pending.clear()
        for server in self.fleet.servers:
            self.fleet.retire(server)

    def quitting(self) -> bool:
        """Return whether a `quit` command was received."""
        return self._quitter is not None

    def schedule(self) -> None:
        """Serve the clients that can be served; the user of the first other one decides which server starts next."""
        waiting, self.pending = self.pending, []
        for one in waiting:
            server = self.fleet.serving(one.identity.uid)
            if server is not None and server.link is not None:
                self._introduce(one.channel, server.link)
            else:
                self.pending.append(one)
        uid = self.pending[0].identity.uid if self.pending else self.fleet.next_wanted()
        if uid is not None and not self.quitting():
            self.fleet.make_way(uid)
        for server in self.fleet.servers:
            if server.pidfd not in self._selector.get_map():
                self._watch(server.pidfd, lambda server=server: self._bury(server))  # type: ignore[misc]

    def crash(self, victim: str) -> None:
        """Kill the daemon or its servers, as the script demands."""
        if victim == "daemon":
            os.kill(os.getpid(), signal.SIGKILL)
        for server in self.fleet.servers:
            server.process.send_signal(signal.SIGKILL)

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor."""
        self._selector.unregister(fd)

    def _watch(self, fd: int, act: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, act)

    def _timeout(self) -> float | None:
        due = [moment for moment in (self.fleet.deadline(), self._force_at) if moment is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _accept(self, listener: socket.socket, *, privileged: bool) -> None:
        self.script.wait("accept")
        self.say("Accepting connection...")
        connection, _address = listener.accept()
        channel = Channel(connection)
        identity = self._identify(channel)
        if identity is None or (privileged and identity.uid not in (0, os.geteuid())):
            self.say(
                "User did not send valid credentials"
                if identity is None
                else "Unable to accept priviliged connection from other user"
            )
            channel.close()
            return
        match channel.receive_int():
            case None:
                self.say("Unable to read new connection type information")
                channel.close()
            case Peer.SERVER:
                self._register(channel, identity)
            case Peer.CLIENT | Peer.DEBUGGEE:
                self._client(channel, identity)
            case Peer.UI:
                self.say("NEW UI")
                session = Session(self, channel, identity, privileged=privileged)
                self._watch(channel.fileno(), session.serve)
            case _:
                self.say("Unknown type of connection")
                channel.close()

    def _identify(self, channel: Channel) -> Identity | None:
        channel.send(HELLO)
        if self.script.read("handshake") is not None:
            return None
        message = channel.receive()
        for fd in message.fds:
            os.close(fd)
        return message.sender if message.data == CREDENTIALS else None

    def _client(self, channel: Channel, identity: Identity) -> None:
        greeting = f"NEW CLIENT {identity.pid} from user {identity.uid}: "
        if self._quitter is not None:
            self.say("The MPS control daemon is shutting down")
            channel.close()
        elif (server := self.fleet.serving(identity.uid)) is not None and server.link is not None:
            self.say(greeting + "Server already exists")
            self._introduce(channel, server.link)
        else:
            self.say(greeting + "Server is not ready, push client to pending list")
            self.pending.append(Waiting(channel, identity))
            self.schedule()

    def _introduce(self, channel: Channel, link: Link) -> None:
        client_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with client_end, server_end:
            for end in (client_end, server_end):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            reached = link.introduce(server_end.fileno()) and channel.send(DESCRIPTOR, fd=client_end.fileno())
        if reached:
            channel.receive_int()
        channel.close()

    def _register(self, channel: Channel, identity: Identity) -> None:
        server = self.fleet.find(identity.pid)
        status, _shared_memory = REGISTRATION.unpack(channel.receive().data.ljust(REGISTRATION.size, b"\xff"))
        if server is None or status != 0:
            self.say(f"NEW SERVER {identity.pid}: Ignoring connection from user")
            channel.close()
            return
        channel.send(PERCENTAGE.pack(self.defaults.percentage))
        channel.send_int64(0)
        channel.send_int(self.defaults.priority)
        self.say(f"NEW SERVER {identity.pid}: Ready")
        link = Link(channel)
        for device, limit in self.defaults.pinned_limits.items():
            link.set_pinned_limit(device, limit)
        self.fleet.registered(server, link)
        self.schedule()
        if self._quitter is not None:
            self.fleet.retire(server)

    def _bury(self, server: Server) -> None:
        if not self.fleet.bury(server, self.forget):
            for waiting in [one for one in self.pending if self.fleet.multiuser or one.identity.uid == server.uid]:
                waiting.channel.close()
                self.pending.remove(waiting)
        self.schedule()
