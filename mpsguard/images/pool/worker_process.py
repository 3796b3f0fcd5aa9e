"""A worker, as the pool sees it: executed by the pool, or forked from a template."""

import socket
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from mpsguard.images.pool.own_process import Channel, ExecutedProcess, new_channel
from mpsguard.images.pool.template_messages import BEGIN
from mpsguard.images.pool.template_process import TemplateProcess
from mpsguard.images.pool.worker_messages import PACKET, FromWorker, decode_from_worker

MODULE: Final = "mpsguard.images.pool.worker"


class Process(Protocol):
    """`ExecutedProcess`, or `ForkedProcess`."""

    pid: int
    pidfd: int

    def kill(self) -> None:
        """SIGKILL it, and its process group; it has not been reaped."""

    def reap(self) -> None:
        """Give all back after its end."""


class WorkerProcess:
    """Owns the channel to a worker, and the process once it is there."""

    def __init__(self, channel: Channel[FromWorker]) -> None:
        """Take ownership of the channel; use `executed` or `forked`."""
        self.channel = channel
        self.process: Process | None = None
        self.answer: socket.socket | None = None
        """The program's end of the connection, until the program has it."""
        self.is_prepared = False
        self._is_condemned = False

    @classmethod
    def executed(cls, prepare: str, pool: Path) -> "WorkerProcess":
        """Start a process; raise OSError. ``prepare``: ``module:function``; ``pool``: the pool's socket."""
        with new_channel(PACKET, decode_from_worker) as (channel, theirs):
            worker = cls(channel)
            worker.process = ExecutedProcess(MODULE, theirs, [prepare], pool)
        return worker

    @classmethod
    def forked(cls, template: TemplateProcess, number: int) -> "WorkerProcess":
        """Have the template fork a worker, which comes later (`come`); raise OSError."""
        with new_channel(PACKET, decode_from_worker) as (channel, theirs):
            template.fork(number, theirs)
        return cls(channel)

    def come(self, process: Process) -> None:
        """Take ownership of the process, which begins now; one that should have been killed before is killed."""
        self.process = process
        with suppress(OSError):  # for want of memory: it would wait for ever
            if not self._is_condemned:
                self.send(BEGIN, ())
                return
        process.kill()

    def send(self, data: bytes, fds: tuple[int, ...]) -> None:
        """Send it a message; one that has ended is noticed by its pidfd; raise OSError if it has not."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.channel.send(data, fds)

    def end(self) -> None:
        """Let it end in order."""
        self.channel.end()

    def kill(self) -> None:
        """SIGKILL it, and its process group, now or when it is there; it has not been reaped."""
        if self.process is None:
            self._is_condemned = True
            self.end()
        else:
            self.process.kill()

    def reap(self) -> None:
        """Give all back after its end; what it left of its process group ends too."""
        if self.process is not None:
            self.process.reap()
        self.channel.close()
        self.drop_answer()

    def drop_answer(self) -> None:
        """Close the program's end of the connection, if the program does not have it."""
        if self.answer is not None:
            self.answer.close()
            self.answer = None
