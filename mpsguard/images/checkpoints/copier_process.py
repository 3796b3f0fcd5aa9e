"""The copier process, as the writer sees it: started by exec, told of cuts, and ended."""

import errno
import os
import select
import socket
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.images.checkpoints import messages
from mpsguard.images.checkpoints.messages import Begin, CopierReady, CutPlan, Ended, Setup
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.processes.helper_process import HelperProcess, module_command, user_environment
from mpsguard.linux.sockets import seqpacket

MODULE: Final = "mpsguard.images.copier"
_DYING: Final = 1.0
"""Seconds for the end after SIGKILL."""


class CopierGoneError(Exception):
    """The copier has ended, or does not follow the protocol."""


class CopierProcess:
    """Owns the process, the socket to it and the event by which it tells of copied pieces."""

    def __init__(self, setup: Setup, spare_fd: int | None) -> None:
        """Start it; raise OSError. ``spare_fd`` stays owned by the caller."""
        try:
            messages.encode(setup)
        except UnicodeEncodeError:
            raise OSError(errno.EILSEQ, "a path that is not UTF-8 cannot be named to the copier") from None
        # No control daemon is there, so CUDA runs outside of MPS: a fault on the lane cannot reach the copier, nor a
        # fault of the copier the lane. It is removed here, since the copier may be killed.
        self._nowhere = Path(tempfile.mkdtemp(prefix="mpsguard-copier-"))
        self.is_ready = False
        with ExitStack() as undo:
            undo.callback(self._forget)
            self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, self._event)
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.enter_context(self._socket)
            with theirs:
                self._process = HelperProcess(
                    module_command(MODULE, str(theirs.fileno()), str(self._event)),
                    user_environment(os.environ) | {"CUDA_MPS_PIPE_DIRECTORY": str(self._nowhere)},
                    fds=(theirs.fileno(), self._event),
                    stderr=None,
                )
            undo.pop_all()
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        with suppress(CopierGoneError):
            self._send(setup, () if spare_fd is None else (spare_fd,))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def begin(self, plan: CutPlan, table: int) -> None:
        """Tell it of a cut; the table's descriptor stays owned by the caller. Raise CopierGoneError or OSError."""
        message, fds = messages.begin(plan)
        try:
            self._send(message, (*fds, table))
        finally:
            close_all(fds)

    def messages(self) -> list[Ended]:
        """Return what it has said since; raise CopierGoneError if that was its end."""
        found: list[Ended] = []
        # In most publications there is nothing: that is said sooner than by a packet that is not there.
        while self._poll.poll(0):
            try:
                packet = seqpacket.receive(self._socket, messages.MAX_PACKET)
            except OSError as error:
                raise CopierGoneError(f"the copier cannot be heard: {error.strerror}") from None
            close_all(packet.fds)
            if packet.end or not packet.data:
                if found:
                    return found
                raise CopierGoneError(f"the copier has ended{self._status()}")
            try:
                message = messages.decode_for_writer(packet.data)
            except msgspec.DecodeError as error:
                raise CopierGoneError(f"not a message of a copier: {error}") from None
            if isinstance(message, CopierReady):
                self.is_ready = True
            else:
                found.append(message)
        return found

    def wait(self, seconds: float) -> None:
        """Wait until it says something, or has ended; at most ``seconds``. Several threads may wait at once."""
        _wait((self._socket.fileno(),), seconds)

    def wait_for_pieces(self, seconds: float) -> None:
        """The same, also for pieces that it has copied since the last call."""
        _wait((self._socket.fileno(), self._event), seconds)
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)

    def close(self) -> None:
        """Let it leave the session and end, as it does when the socket ends. Then `reap`."""
        self._socket.close()
        os.close(self._event)

    def kill(self) -> None:
        """End it at once, without waiting for its end. Then `reap`."""
        self._process.kill()
        self.close()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended; does not wait. What is left of it is removed then."""
        if self._process.poll() is None:
            return False
        self._forget()
        return True

    @property
    def was_killed(self) -> bool:
        """Whether it has ended, or has to end, without giving its lease back first."""
        return self._process.poll() != 0

    def reap(self, seconds: float) -> bool:
        """Wait for its end, by SIGKILL after ``seconds``; return False if it is in the driver and does not end."""
        ended = self._process.end(seconds, _DYING)
        if ended:
            self._forget()
        return ended

    def _forget(self) -> None:
        with suppress(OSError):
            self._nowhere.rmdir()

    def _status(self) -> str:
        status = self._process.wait(0.5)
        return "" if status is None else f" with status {status}"

    def _send(self, message: Setup | Begin, fds: tuple[int, ...]) -> None:
        try:
            seqpacket.send(self._socket, messages.encode(message), fds=fds)
        except OSError as error:
            raise CopierGoneError(f"the copier cannot be told: {error.strerror}") from None


def _wait(fds: Sequence[int], seconds: float) -> None:
    # An object for each call: one of several threads that poll with the same object raises RuntimeError.
    poll = select.poll()
    for fd in fds:
        if fd < 0:
            return  # another thread has closed it
        poll.register(fd, select.POLLIN)
    poll.poll(max(seconds, 0.0) * 1e3)
