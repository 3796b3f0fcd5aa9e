"""Acknowledges clients' sockets to a lane's control daemon the moment they come.

The daemon has sent a client's socket and waits for the acknowledgement; until then it serves no other client (driver
580.159.04). On the event loop that would wait for what is to be done for other peers, in this pass and the next.
"""

import asyncio
import errno
import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from mpsguard.guard.lanes import mps_protocol
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.identity import Credentials
from mpsguard.linux.side_threads import report_defect
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.sockets.seqpacket import Packet

_CLOSE_WITHIN: Final = 5.0


class Heard:
    """What a control daemon says on one connection, told to the event loop packet by packet."""

    def __init__(
        self, stream: PacketStream, sender: Credentials | None, take: Callable[[Packet | OSError], None]
    ) -> None:
        self._stream = stream
        self._sender = sender
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._over = False

    def read(self) -> bool:
        """Take a packet that is there, on the thread; return whether more is to be heard."""
        try:
            packet = self._stream.receive_now(mps_protocol.PACKET_LIMIT)
        except BlockingIOError:
            return True
        except OSError as error:
            self.tell(error)
            return False
        if packet.truncated:
            # Most likely the client's socket, for which this process had no descriptor left. The daemon waits.
            self._stream.end_sending()
            close_all(packet.fds)
            self.tell(OSError(errno.EMFILE, "a packet of the control daemon, or its descriptors, did not fit"))
            return False
        if packet.fds:
            self._acknowledge()
        self.tell(packet)
        return not packet.end

    def close(self) -> None:
        """Take nothing more; what is on its way is closed."""
        self._over = True

    def _acknowledge(self) -> None:
        try:
            self._stream.send_now(mps_protocol.ACKNOWLEDGEMENT, sender=self._sender)
        except OSError:
            # No process can speak for a client that has ended: the daemon must not wait for it.
            self._stream.end_sending()

    def tell(self, found: Packet | OSError) -> None:
        """Give the event loop what was heard; on the thread."""
        try:
            self._loop.call_soon_threadsafe(partial(self._deliver, found))
        except RuntimeError:
            # The loop has ended.
            _drop(found)

    def _deliver(self, found: Packet | OSError) -> None:
        if self._over:
            _drop(found)
        else:
            self._take(found)


class Acknowledger:
    """Owns a thread that waits for control daemons alone, from `open` to `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while a connection is read, so that it is not closed meanwhile."""
        self._heard: dict[int, Heard] = {}
        self._owned = ExitStack()

    def open(self) -> None:
        """Start the thread; raise OSError."""
        with ExitStack() as owned:
            self._epoll = owned.enter_context(select.epoll())
            self._end = os.eventfd(0, os.EFD_CLOEXEC)
            owned.callback(os.close, self._end)
            self._epoll.register(self._end, select.EPOLLIN)
            thread = threading.Thread(target=self._run, name="acknowledger", daemon=True)
            thread.start()
            owned.callback(thread.join, _CLOSE_WITHIN)
            owned.callback(os.eventfd_write, self._end, 1)
            self._owned = owned.pop_all()

    @contextmanager
    def hear(
        self, stream: PacketStream, sender: Credentials | None, take: Callable[[Packet | OSError], None]
    ) -> Iterator[None]:
        """Hear a control daemon to its end, and acknowledge the client's socket.

        Args:
            stream: the connection; no task receives from it meanwhile.
            sender: the client; None: the guard sends as itself.
            take: called in the event loop with each packet, and closes its descriptors; those of a socket have
                been acknowledged. An end or an error is the last. Must not raise.
        """
        fd = stream.fileno()
        heard = Heard(stream, sender, take)
        with self._lock:
            self._epoll.register(fd, select.EPOLLIN)
            self._heard[fd] = heard
        try:
            yield
        finally:
            with self._lock:
                self._forget(fd)
            heard.close()

    def close(self) -> None:
        """End the thread; nothing is being heard any more. Safe to call twice."""
        self._owned.close()

    def _forget(self, fd: int) -> None:
        if self._heard.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def _run(self) -> None:
        while True:
            ready = [fd for fd, _ in self._epoll.poll()]
            if self._end in ready:
                return
            for fd in ready:
                with self._lock:
                    self._read(fd)

    def _read(self, fd: int) -> None:
        heard = self._heard.get(fd)
        if heard is None:
            return
        try:
            goes_on = heard.read()
        except Exception as error:  # a fault of ours in one must not cost the others their thread
            report_defect()
            heard.tell(OSError(errno.EIO, f"{type(error).__name__}: {error}"))
            goes_on = False
        if not goes_on:
            self._forget(fd)


def _drop(found: Packet | OSError) -> None:
    if isinstance(found, Packet):
        close_all(found.fds)
