"""A worker's process, as the pool sees it."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.linux.descriptors.fd_closer import of_strangers
from mpsguard.linux.sockets import seqpacket
from mpsguard.pool.address import SOCKET_VARIABLE
from mpsguard.pool.worker_messages import PACKET, FromWorker, decode_from_worker

MODULE: Final = "mpsguard.pool.worker"


class WorkerProcess:
    """Owns the process, its pidfd and the channel to it. It leads a process group, which ends with it."""

    def __init__(self, prepare: str, pool: Path) -> None:
        """Start it; raise OSError. ``prepare``: ``module:function``; ``pool``: the pool's socket."""
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        seqpacket.let_descriptors_come(self.channel, allowed=False)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    # -P: the worker looks at the directory before it imports anything from there.
                    [sys.executable, "-P", "-m", MODULE, str(theirs.fileno()), prepare],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, SOCKET_VARIABLE: str(pool)},
                    pass_fds=(theirs.fileno(),),
                    # Signals to the pool's group, such as Ctrl-C, are not for it: the end of the channel ends it.
                    start_new_session=True,
                )
        except BaseException:
            self.channel.close()
            raise
        self.channel.setblocking(False)
        try:
            self.pidfd = os.pidfd_open(self._process.pid)
        except BaseException:
            self.kill()
            self._process.wait()
            self.channel.close()
            raise
        self.answer: socket.socket | None = None
        """The program's end of the connection, until the program has it."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, data: bytes, fds: tuple[int, ...]) -> None:
        """Send it a message; one that has ended is noticed by its pidfd."""
        with suppress(OSError):
            seqpacket.send(self.channel, data, fds=fds)

    def receive(self) -> FromWorker | None:
        """Return its next message, or None at the end.

        Raises:
            BlockingIOError: there is none.
            msgspec.DecodeError: it is invalid.
        """
        try:
            packet = seqpacket.receive(self.channel, PACKET)
        except BlockingIOError:
            raise
        except OSError:
            return None
        of_strangers(packet.fds)
        if packet.end:
            return None
        if packet.truncated:
            raise msgspec.DecodeError("too long")
        return decode_from_worker(packet.data)

    def end(self) -> None:
        """Let it end in order: it does so at the end of the channel."""
        with suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """SIGKILL it, and its process group; it has not been reaped."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Give all back after its end; what it left of its process group ends too."""
        self.kill()
        self._process.wait()
        os.close(self.pidfd)
        self.channel.close()
        self.drop_answer()

    def drop_answer(self) -> None:
        """Close the program's end of the connection, if the program does not have it."""
        if self.answer is not None:
            self.answer.close()
            self.answer = None
