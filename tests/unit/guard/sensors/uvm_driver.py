"""A stand-in for nvidia-uvm: what the kernel does with a tracker's pages, done by the test.

It takes the requests of the tools device as the driver's releases do, keeps the addresses that come with them, and
writes entries and pointers there the way ``enqueue_event`` does. SIMULATED: no driver is involved. An address space
is a descriptor of /dev/full (any character device would do) opened with O_APPEND; without it, it answers as a file of
nvidia-uvm that is none. Readiness is an edge that lasts one turn of the event loop, where the driver's is a level: code
that works with this works with that.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
from enum import Enum

from mpsguard.linux.descriptors.foreign_fd import same_file
from mpsguard.linux.nvidia.uvm_tools import ToolsDriver

GPU_FAULT, FATAL_FAULT = 3, 6


class Release(Enum):
    """How the driver takes request 56, and whether it knows 76."""

    R535 = "only the first layout"
    R550 = "a version after the status"
    R560 = "a version before the status"
    R580 = "both layouts, a request each"


def entry(wide: bool, kind: int, *, fault: int = 2, access: int = 2, gpu: int = 1, at: int = 0, ns: int = 0) -> bytes:
    """An entry as ``record_gpu_fault_instance`` and ``uvm_tools_record_gpu_fatal_fault`` fill it."""
    reason, gpc, client, batch = 1, 5, 6, 7
    if kind == GPU_FAULT and wide:
        data = struct.pack("<BBHHHQQQIBB", kind, fault, gpu, gpc, client, at, ns, 99, batch, 1, access)
    elif kind == GPU_FAULT:
        data = struct.pack("<BBBBHHQQQIB", kind, fault, access, gpu, gpc, client, at, ns, 99, batch, 1)
    elif wide:
        data = struct.pack("<BBBBHxxQQ", kind, fault, access, reason, gpu, at, ns)
    else:
        data = struct.pack("<BBBBBxxxQQ", kind, fault, access, gpu, reason, at, ns)
    return data.ljust(72 if wide else 64, b"\0")


class Queue:
    """The kernel's side of one tracker."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._far.setblocking(False)
        self._near.setblocking(False)
        self.fd = os.dup(self._near.fileno())
        """The tracker's: it closes it."""
        self.file = -1
        self.threshold = 0
        self.events = 0
        self.wide = False

    def create(self, queue: int, entries: int, control: int, file: int, wide: bool) -> None:
        self.queue, self.entries, self.control, self.wide = queue, entries, control, wide
        # As the driver does: the tracker holds the file.
        self.file = os.dup(file)
        self.threshold = entries // 2

    def put(self, kind: int, **fields: int) -> bool:
        """Record one event of a kind that may be enabled or not; False if there was no room."""
        return self.put_raw(kind, entry(self.wide, kind, **fields))

    def put_raw(self, kind: int, data: bytes) -> bool:
        mask = self.entries - 1
        get_ahead, get_behind, _, put = self._words()
        if (self.entries + (get_behind & mask) - (put & mask)) & mask == 1:
            counter = ctypes.c_uint64.from_address(self.control + 16 + 8 * kind)
            counter.value += 1
            return False
        ctypes.memmove(self.queue + (put & mask) * len(data), data, len(data))
        put = (put + 1) & mask
        ctypes.memmove(self.control + 8, struct.pack("<II", put, put), 8)
        if (self.entries + put - get_ahead) & mask >= self.threshold:
            # The reader that does not take its wake-ups has enough of them waiting already.
            with contextlib.suppress(BlockingIOError):
                self._far.send(b"!")
        return True

    def consume(self) -> None:
        """End the edge; the tracker's reader was called in the same turn of the loop, if there is one."""
        with contextlib.suppress(BlockingIOError):
            if not self._near.recv(4096):
                asyncio.get_running_loop().remove_reader(self._near)

    def watch(self) -> None:
        if self._near.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._near, self.consume)

    def fail(self) -> None:
        """The driver is in a bad state: its ``poll`` says error from now on (here: hang-up)."""
        self._far.close()

    def is_closed(self) -> bool:
        try:
            return not same_file(self.fd, self._near.fileno())
        except OSError:
            return True

    def free(self) -> None:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(self._near)
        self._near.close()
        self._far.close()
        if self.file >= 0:
            os.close(self.file)

    def pending(self) -> int:
        _, get_behind, _, put = self._words()
        return (put - get_behind) % self.entries

    def _words(self) -> tuple[int, int, int, int]:
        words: tuple[int, int, int, int] = struct.unpack("<IIII", ctypes.string_at(self.control, 16))
        return words


class StandInDriver(ToolsDriver):
    """See the module. ``queues`` are those that are open, in the order they were made.

    Threads open, call and close; the rest is the event loop's.
    """

    def __init__(self, release: Release = Release.R580) -> None:
        super().__init__()
        self.release = release
        self.queues: list[Queue] = []
        self.refuse_with = 0
        self.uuids: dict[int, bytes] = {}
        """Of the GPUs that every address space has registered, by the number of the whole GPU."""
        self.asked_for_uuids = 0
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    def open(self) -> int:
        queue = Queue()
        self.queues.append(queue)
        if self._loop is not None:
            # Before the sensor's own reader, which is added when what was opened here is handed over.
            self._loop.call_soon_threadsafe(queue.watch)
        return queue.fd

    def call(self, fd: int, request: int, parameters: bytearray) -> None:
        if request == 64:
            self._tell_uuids(fd, parameters)
            self.asked_for_uuids += 1
            return
        queue = next(queue for queue in reversed(self.queues) if queue.fd == fd)
        if request == 57:
            queue.threshold = struct.unpack_from("<I", parameters)[0]
            struct.pack_into("<I", parameters, 4, 0)
        elif request == 58:
            queue.events = struct.unpack_from("<Q", parameters)[0]
            struct.pack_into("<I", parameters, 8, self.refuse_with)
        elif request == 56 or (request == 76 and self.release is Release.R580):
            self._create(queue, parameters, wide=request == 76)
        else:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def _create(self, queue: Queue, parameters: bytearray, *, wide: bool) -> None:
        assert len(parameters) >= 64, "550 writes 64 bytes back"
        at, entries, control = struct.unpack_from("<QQQ", parameters)
        (file,) = struct.unpack_from("<I", parameters, 44)
        version_at = {Release.R550: 52, Release.R560: 48}.get(self.release)
        status = 0
        if version_at is not None and struct.unpack_from("<I", parameters, version_at)[0] not in (1, 2):
            status = 0x1F
        elif not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_APPEND:
            status = 0x16
        else:
            queue.create(at, entries, control, file, wide)
        struct.pack_into("<I", parameters, 52 if self.release is Release.R560 else 48, status)

    def _tell_uuids(self, file: int, parameters: bytearray) -> None:
        assert len(parameters) >= 24, "550 writes 24 bytes back"
        table, word = struct.unpack_from("<QI", parameters)
        status_at = 8 if self.release is Release.R580 else 12
        if not fcntl.fcntl(file, fcntl.F_GETFL) & os.O_APPEND:
            struct.pack_into("<I", parameters, status_at, 0x16)
            return
        if self.release is Release.R560 and word not in (1, 2):
            struct.pack_into("<I", parameters, status_at, 0x1F)
            return
        assert word == 0 or self.release is Release.R560, "550 would give the table of the second layout"
        count = max(self.uuids, default=0) + 1
        written = count if self.release is Release.R535 else 33
        entries = [b"\xff" * 16, *(self.uuids.get(number, bytes(16)) for number in range(1, written))]
        ctypes.memmove(table, b"".join(entries), 16 * written)
        if self.release in (Release.R535, Release.R550):
            struct.pack_into("<I", parameters, 8, count)
        if self.release is Release.R550:
            struct.pack_into("<I", parameters, 16, 1)
        struct.pack_into("<I", parameters, status_at, 0)

    def reap(self) -> None:
        """Notice which trackers are closed, and let go of their files, as ``uvm_tools_release`` does."""
        for queue in [queue for queue in self.queues if queue.is_closed()]:
            self.queues.remove(queue)
            queue.free()

    def live(self, kind: int | None = None) -> list[Queue]:
        """Queues with events enabled, or those with events of one kind."""
        self.reap()
        return [queue for queue in self.queues if queue.events & (-1 if kind is None else 1 << kind)]
