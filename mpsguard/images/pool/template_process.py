"""The template of the workers, as the pool sees it, and workers that are forked from it."""

import errno
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpsguard.images.pool.own_process import ExecutedProcess, new_channel
from mpsguard.images.pool.template_messages import PACKET, ForkWorker, ReapWorker, decode_from_template, encode
from mpsguard.linux.processes import procfs

MODULE: Final = "mpsguard.images.pool.template"

_PROCESS_GROUP: Final = 4
"""PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9."""


class TemplateProcess:
    """Owns the process and the channel to it."""

    def __init__(self, prepare: str, modules: Sequence[str], pool: Path) -> None:
        """Start it; raise OSError. See `mpsguard.images.pool.template`."""
        with new_channel(PACKET, decode_from_template) as (self.channel, theirs):
            self.process = ExecutedProcess(MODULE, theirs, [prepare, *modules], pool)
        self._has_ended = False
        self._to_reap: deque[int] = deque()

    def fork(self, number: int, channel: socket.socket) -> None:
        """Have a worker forked once the imports are done; raise OSError. ``channel`` stays owned by the caller."""
        self._send_reaps()
        self.channel.send(encode(ForkWorker(number)), (channel.fileno(),))

    def reap_worker(self, number: int) -> None:
        """Have it wait for a worker that has ended, or that never began: its channel has been closed before."""
        self._to_reap.append(number)
        self._send_reaps()

    def _send_reaps(self) -> None:
        # What a template that stalls has no room for is said to it later; one that has ended needs none.
        with suppress(OSError):
            while self._to_reap:
                self.channel.send(encode(ReapWorker(self._to_reap[0])))
                self._to_reap.popleft()

    @property
    def lives(self) -> bool:
        """Whether it has not ended: its workers' pids are theirs until they are reaped."""
        if self._has_ended:
            # The number of its pidfd may be another descriptor's by now.
            return False
        poll = select.poll()
        poll.register(self.process.pidfd, select.POLLIN)
        return not poll.poll(0)

    def reap(self) -> None:
        """Give all back after its end. Its workers work on."""
        self._has_ended = True
        self.process.reap()
        self.channel.close()


class ForkedProcess:
    """Owns the pidfd of a worker that a template has forked. It leads a process group."""

    def __init__(self, template: TemplateProcess, number: int, pid: int) -> None:
        """Raise OSError or ProcessLookupError if it is there no more."""
        self.pid = pid
        self._template = template
        self._number = number
        self.pidfd = os.pidfd_open(pid)
        try:
            # Of a template that has ended, the pid may be another process's by now.
            if procfs.parent(pid) != template.process.pid:
                raise ProcessLookupError(pid)
        except BaseException:
            os.close(self.pidfd)
            raise

    def kill(self) -> None:
        """SIGKILL it, and its process group.

        Before Linux 6.9 not the group of one that has outlived its template: its pid may be another process's by now.
        """
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL, None, _PROCESS_GROUP)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                if self._template.lives:
                    os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Give all back after its end; what it left of its process group ends too."""
        self.kill()
        self._template.reap_worker(self._number)
        with suppress(ChildProcessError):
            # It is the pool's, without its template, if the pool is the first process of a container.
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        os.close(self.pidfd)
