"""Asking a program under the preload for the memory of one region (mpsguard/preload/snapshot.h)."""

import errno
import socket
import struct
import time
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.images.snapshot.errors import NotPreloadedError, SnapshotError
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.sockets.request_channel import RequestChannel, connected

_MAGIC: Final = b"mpsgSNP\1"
_REQUEST: Final = struct.Struct("<8sQII")
_REPLY: Final = struct.Struct("<iIQQQQ16s")
_GONE: Final = -1
_SLAB: Final = 1
_SET_ASIDE: Final = 2
_ORDERED: Final = 4
_ADDRESSES: Final = 1 << 57
_ALL_TOGETHER: Final = 10.0
"""All answers together may take so many times the deadline of one."""


class MemoryOffer(msgspec.Struct, frozen=True):
    """A region's memory as the program hands it out; its numbers have been checked, and nothing else."""

    fd: int
    """Owned by the receiver."""
    memory: int
    """Bytes behind the descriptor."""
    offset: int
    """Of the allocation in them."""
    address: int
    size: int
    slab: bool
    freed: bool
    ordered: bool
    gpu: bytes
    """UUID; zeros if the program's driver did not say."""


class RegionGoneError(Exception):
    """The program has freed the region."""


class RegionRefusedError(Exception):
    """The program's driver makes no descriptor of this region; the text says why."""


class MemoryRequests:
    """The questions to one program. Each has a deadline, and so have all together."""

    def __init__(self, pid: int, service: bytes, deadline: float) -> None:
        self._pid = pid
        self._address = b"\0mpsguard-ipc-" + service.hex().encode()
        self._deadline = deadline
        self._left = deadline * _ALL_TOGETHER

    def ask(self, start: int, number: int) -> MemoryOffer:
        """Ask for the region that begins at ``start`` and has that number.

        Raises:
            RegionGoneError, RegionRefusedError: about this region.
            SnapshotError: the program cannot be talked to.
        """
        began = time.monotonic()
        within = min(self._deadline, self._left)
        if within <= 0:
            raise SnapshotError(f"process {self._pid} took too long with its answers")
        try:
            channel = RequestChannel(self._connected(began + within), _REPLY.size + 1, bytes, most_fds=1)
            with closing(channel):
                reply, fds = channel.ask(_REQUEST.pack(_MAGIC, start, number, 0), due=began + within)
        except OSError as error:
            raise self._unreachable(error, within) from None
        finally:
            self._left -= time.monotonic() - began
        return self._offer(reply, fds)

    def _connected(self, due: float) -> socket.socket:
        sock = connected(self._address, due)
        try:
            self._check_peer(sock)
        except BaseException:
            sock.close()
            raise
        return sock

    def _check_peer(self, sock: socket.socket) -> None:
        """The name was the program's word; that this very process listens there is the kernel's."""
        peer = seqpacket.peer(sock).pid
        if peer != self._pid:
            raise NotPreloadedError(
                f"process {self._pid} has no allocations of its own under the preload: its zone table is "
                f"{f'that of process {peer}' if peer else 'of a process in another pid namespace'}"
            )

    def _unreachable(self, error: OSError, within: float) -> SnapshotError:
        if isinstance(error, TimeoutError):
            return SnapshotError(f"process {self._pid} does not answer within {within:g} s: is it stopped?")
        if error.errno == errno.ECONNREFUSED and _other_network(self._pid):
            return SnapshotError(
                f"process {self._pid} is in another network namespace: "
                f"nsenter --net --target {self._pid} mpsguard-ctl snapshot {self._pid}"
            )
        if error.errno == errno.ECONNREFUSED:
            return SnapshotError(f"process {self._pid} does not listen any more: it has ended")
        if error.errno in {errno.ECONNRESET, errno.EPIPE}:
            return SnapshotError(
                f"process {self._pid} refuses: it answers its own user and root, and not while it ends"
            )
        if error.errno in {errno.EMFILE, errno.EBADMSG}:
            return self._other_form()
        return SnapshotError(f"process {self._pid} cannot be asked: {error.strerror}")

    def _other_form(self) -> SnapshotError:
        return SnapshotError(f"process {self._pid} answers in another form: it has a preload of another version")

    def _offer(self, reply: bytes, fds: tuple[int, ...]) -> MemoryOffer:
        try:
            if len(reply) != _REPLY.size:
                raise self._other_form()
            result, flags, memory, offset, address, size, gpu = _REPLY.unpack(reply)
            if result == _GONE:
                raise RegionGoneError
            if result != 0:
                raise RegionRefusedError(f"its driver makes no descriptor of it: error {result}")
            inside = 0 < size <= memory and offset <= memory - size and address <= _ADDRESSES and memory <= _ADDRESSES
            if not fds or not inside:
                raise SnapshotError(f"process {self._pid} answers with numbers that cannot be")
        except BaseException:
            close_all(fds)
            raise
        return MemoryOffer(
            fd=fds[0],
            memory=memory,
            offset=offset,
            address=address,
            size=size,
            slab=bool(flags & _SLAB),
            freed=bool(flags & _SET_ASIDE),
            ordered=bool(flags & _ORDERED),
            gpu=gpu,
        )


def _other_network(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    except OSError:
        return False
