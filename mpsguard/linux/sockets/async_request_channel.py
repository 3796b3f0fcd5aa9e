"""`request_channel` for an event loop: a cancelled request ends the channel too."""

import asyncio
import errno
from contextlib import suppress
from typing import Final

from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.sockets.seqpacket import Packet


class AsyncRequestChannel:
    """Owns a stream. One task at a time may use it."""

    def __init__(self, stream: PacketStream, limit: int, deadline: float) -> None:
        """Take ownership of ``stream``. ``limit``: bytes of an answer; ``deadline``: seconds for each."""
        self.stream: Final = stream
        self._limit = limit
        self._deadline = deadline

    @property
    def open(self) -> bool:
        """Whether requests can be sent: none was interrupted, and the peer has not left."""
        return self.stream.fileno() >= 0 and not self.stream.has_left()

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        self.stream.close()

    async def ask(self, data: bytes, fds: tuple[int, ...] = ()) -> Packet:
        """Send a request and return its answer, of which the caller owns the descriptors.

        Raises:
            TimeoutError: no answer in time.
            ConnectionError: the peer has ended.
            OSError: EMFILE if there is no room for the answer's descriptors; EBADF after an interruption.
        """
        try:
            async with asyncio.timeout(self._deadline):
                # The last messages of a peer that has ended can still be received.
                with suppress(BrokenPipeError):
                    await self.stream.send(data, fds=fds)
                packet = await self.stream.receive(self._limit)
            if packet.end:
                raise ConnectionResetError(errno.ECONNRESET, "it has ended")
            if packet.truncated:
                close_all(packet.fds)
                raise OSError(errno.EMFILE, "there is no room for its descriptors")
        except BaseException:
            self.close()
            raise
        return packet
