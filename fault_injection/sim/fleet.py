"""The servers of one control daemon: started when a client needs one, replaced when another user comes.

Seen on driver 580.159.04: one server at a time (its uid is the client's, or root's with -M), shutdown with a backoff of
200 ms that doubles. Seen on the daemon of 535: a server that cannot start is tried six times, then the waiting clients
are hung up on.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fault_injection.sim.link import Link, ServerLostError
from fault_injection.sim.recorder import Log, Origin

SERVER = Path(__file__).parent / "bin" / "nvidia-cuda-mps-server"
_ATTEMPTS = 6
_FIRST_BACKOFF_MS = 200
_LAST_BACKOFF_MS = 3200


class Server:
    """One server process as the daemon knows it; without a link it has not registered yet."""

    def __init__(self, process: subprocess.Popen[bytes], uid: int, pidfd: int) -> None:
        self.process = process
        self.uid = uid
        self.pidfd = pidfd
        self.link: Link | None = None
        self.retiring = False
        self.leaving = False
        self.backoff_ms = _FIRST_BACKOFF_MS
        self.retry_at: float | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid


class Fleet:
    """Start, find, retire and bury servers."""

    def __init__(self, log: Log, multiuser: bool) -> None:
        self.log = log
        self.multiuser = multiuser
        self.servers: list[Server] = []
        self.wanted: list[int] = []
        self._failures: dict[int, int] = {}

    def find(self, pid: int) -> Server | None:
        """The server with this process id."""
        return next((server for server in self.servers if server.pid == pid), None)

    def serving(self, uid: int) -> Server | None:
        """A registered server that takes clients of this user; one that is only asked to leave still does."""
        for server in self.servers:
            if server.link is not None and not server.leaving and (self.multiuser or server.uid == uid):
                return server
        return None

    def make_way(self, uid: int) -> None:
        """Start a server for this user, or ask the one of another user to leave."""
        if not self.servers:
            self._start(uid)
        for server in self.servers:
            if server.link is not None and not self.multiuser and server.uid != uid:
                self.retire(server)

    def next_wanted(self) -> int | None:
        """The user of the next server that `start_server` asked for and that is not there yet."""
        self.wanted = [
            uid
            for uid in self.wanted
            if not any(self.multiuser or server.uid == uid for server in self.servers if not server.leaving)
        ]
        return self.wanted[0] if self.wanted else None

    def registered(self, server: Server, link: Link) -> None:
        """A server is ready."""
        server.link = link
        self._failures.pop(server.uid, None)

    def retire(self, server: Server) -> None:
        """Ask a server to exit, now or as soon as its clients are gone."""
        if server.retiring:
            return
        server.retiring = True
        self._try(server, "disabled")

    def kill(self, server: Server) -> None:
        """End a server with its clients."""
        self.log.say(Origin.CONTROL, f"Force shutting down server {server.pid}")
        server.retiring, server.leaving, server.retry_at = True, True, None
        server.process.send_signal(signal.SIGKILL)

    def deadline(self) -> float | None:
        """When the next try to shut a server down is due."""
        return min((server.retry_at for server in self.servers if server.retry_at is not None), default=None)

    def tick(self) -> None:
        """Try again where it is due."""
        now = time.monotonic()
        for server in self.servers:
            if server.retry_at is not None and server.retry_at <= now:
                self._try(server, "enabled")

    def bury(self, server: Server, forget: Callable[[int], None]) -> bool:
        """Take leave of a server that exited; true when its user should get another try."""
        forget(server.pidfd)
        os.close(server.pidfd)
        code = server.process.wait()
        status = max(code, 0)
        self.servers.remove(server)
        self.log.say(Origin.CONTROL, f"Server {server.pid} exited with status {status}")
        if server.link is not None:
            server.link.close()
            return True
        failures = self._failures[server.uid] = self._failures.get(server.uid, 0) + 1
        if failures < _ATTEMPTS:
            return True
        del self._failures[server.uid]
        return False

    def _start(self, uid: int) -> None:
        runs_as = 0 if self.multiuser else uid
        other = runs_as != os.geteuid()
        process = subprocess.Popen(
            [SERVER, "-multiuser-server" if self.multiuser else ""],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # The vendor's changes the uid alone (setuid(2), 535 and 550), and so the server keeps the daemon's group.
            user=runs_as if other else None,
        )
        server = Server(process, runs_as, os.pidfd_open(process.pid))
        self.servers.append(server)
        if uid in self.wanted:
            self.wanted.remove(uid)
        self.log.say(Origin.CONTROL, f"Starting new server {process.pid} for user {uid}")

    def _try(self, server: Server, backoff: str) -> None:
        self.log.say(Origin.CONTROL, f"Try shutting down server {server.pid}, backoff is {backoff}")
        server.retry_at = None
        if server.link is None:
            server.process.send_signal(signal.SIGTERM)
            return
        with suppress(ServerLostError):
            if workers := server.link.shut_down():
                self.log.say(
                    Origin.CONTROL,
                    f"Server {server.pid} has {workers} active worker threads. Server will not shutdown.",
                )
                self.log.say(
                    Origin.CONTROL,
                    f"Control will try shutting down server {server.pid} again in at most {server.backoff_ms}ms",
                )
                server.retry_at = time.monotonic() + server.backoff_ms / 1000
                server.backoff_ms = min(server.backoff_ms * 2, _LAST_BACKOFF_MS)
                return
        server.leaving = True
