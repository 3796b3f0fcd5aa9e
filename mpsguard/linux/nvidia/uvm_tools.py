"""The event queues of /dev/nvidia-uvm-tools: one address space's GPU faults, told by the driver from outside.

Facts are from the open kernel modules (github.com/NVIDIA/open-gpu-kernel-modules, kernel-open/nvidia-uvm), compared
over the releases 535.54 to 595.45:

* ``uvm_ioctl.h``: the requests are plain numbers and answer in a status field. UVM_TOOLS_INIT_EVENT_TRACKER (56) is in
  all of them; UVM_TOOLS_INIT_EVENT_TRACKER_V2 (76) came with 565.57, the same structure with larger entries behind it.
  550 to 560 have a version number inside request 56 instead, in two places (see `_INIT`), and a second layout that no
  other release has; there this module asks for the first layout.
* ``uvm_types.h``: UvmToolsEventControlData, the page of the pointers.
* ``uvm_tools.c``: the tracker holds the client's file until it is closed (create_event_tracker).

The queue (enqueue_event): the kernel alone writes ``put_*`` and ``dropped``, we alone write ``get_*``; all but one
entry can be in use; what finds no room is counted by its type and gone. The kernel writes the entry, then ``put``,
and no barrier between them: x86 keeps stores in that order, and loads too. On other machines what is read after a
wake-up is safe, for ``poll`` takes the lock under which it was written.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import select
import struct
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Self

from mpsguard.linux.nvidia.uvm_events import V1, V2, EventLayout, Events, Fault, decode

ENTRIES: Final = 64
"""Entries of a queue, a power of two; one is always free."""

THRESHOLD: Final = 1
"""Unread entries from which on the queue is readable."""

ILLEGAL_ACTION: Final = 0x16
"""NV_ERR_ILLEGAL_ACTION (nvstatuscodes.h): here, a file of nvidia-uvm that is not (yet) an address space."""

SET_THRESHOLD: Final = 57
ENABLE_EVENTS: Final = 58

_INIT: Final = struct.Struct("=QQQ16xIIIIII")
"""Queue, its entries, control page, (processor,) all processors, the file; then 16 bytes that differ.

The status is the first word of them, and nothing follows it but padding, except: 550 and 555 have the version asked
for behind it, 560 before it. Both are 1 for the first layout: with 1 in both words, the status is the second word if
the first still is 1 afterwards, which no call here answers (NV_ERR_BROKEN_FB), and else the first.
"""
INIT_STATUS_AT: Final = 48
"""Where the first of these two words is."""
_VERSION: Final = 1
_THRESHOLD: Final = struct.Struct("=II")
_ENABLE: Final = struct.Struct("=QI4x")

_GET_AHEAD, _GET_BEHIND, _PUT_BEHIND = 0, 1, 3
"""Words of the control page; the dropped events follow from byte 16 on, 64 bits for each of 64 types."""
_DROPPED_AT: Final = 2
_EVENT_TYPES: Final = 64
_PASSES: Final = 4
"""How often one `Tracker.drain` looks for more, so that a flood cannot keep it."""


class Drained(NamedTuple):
    """What a queue held."""

    faults: list[Fault]
    skipped: int
    """Entries of a type that was not asked for: a driver that this module does not know."""
    dropped: int
    """Events for which there was no room since the last time."""


class UvmStatusError(Exception):
    """The driver refused a request; ``status`` is its NV_STATUS."""

    def __init__(self, request: str, status: int) -> None:
        super().__init__(f"nvidia-uvm-tools answers {status:#x} to {request}")
        self.status = status


class NotAVaSpaceError(UvmStatusError):
    """The file is of nvidia-uvm, but is not, or not yet, an address space: a CUDA process has one of either kind."""


class ToolsDriver:
    """The device; its calls are here so that a stand-in can take its place."""

    note: ClassVar[str] = ""
    """What comes before all that is told of it."""

    def __init__(self, path: Path = Path("/dev/nvidia-uvm-tools")) -> None:
        self._path = path

    def open(self) -> int:
        """A descriptor for one tracker; OSError if the driver is not loaded or in no state to work."""
        return os.open(self._path, os.O_RDWR | os.O_CLOEXEC)

    def call(self, fd: int, request: int, parameters: bytearray) -> None:
        """One ioctl; the driver answers inside ``parameters``. OSError EINVAL for a request it does not know."""
        fcntl.ioctl(fd, request, parameters, True)


class Tracker:
    """Owns one queue of one address space. Readable (poll) while it holds events.

    It holds the client's file too: as long as it is open, the client's GPU memory outlives the client.
    """

    def __init__(self, fd: int, layout: EventLayout, memory: mmap.mmap) -> None:
        self._fd = fd
        self.layout = layout
        self._memory = memory
        # Through a view of the right width each access is one load or store; struct's standard sizes go by the byte.
        whole = memoryview(memory)
        control = whole[_queue_bytes(layout) :]
        self._pointers = control[:16].cast("I")
        self._dropped_counts = control[: 8 * (_DROPPED_AT + _EVENT_TYPES)].cast("Q")
        self._views = (self._pointers, self._dropped_counts, control, whole)
        self._get = 0
        self._dropped = 0

    @classmethod
    def attach(cls, driver: ToolsDriver, uvm_fd: int, events: Events) -> Self:
        """Watch the address space behind ``uvm_fd``, a descriptor of this process that may be closed afterwards.

        NotAVaSpaceError if it is none; UvmStatusError or OSError if the driver refuses otherwise.
        """
        fd = driver.open()
        try:
            layout, memory = _create_queue(driver, fd, uvm_fd)
            threshold = bytearray(_THRESHOLD.pack(THRESHOLD, 0))
            driver.call(fd, SET_THRESHOLD, threshold)
            _check("SET_NOTIFICATION_THRESHOLD", _THRESHOLD.unpack(threshold)[1])
            enable = bytearray(_ENABLE.pack(events, 0))
            driver.call(fd, ENABLE_EVENTS, enable)
            _check("EVENT_QUEUE_ENABLE_EVENTS", _ENABLE.unpack(enable)[1])
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, layout, memory)

    def fileno(self) -> int:
        """The descriptor, for pollers; nothing can be read from it."""
        return self._fd

    def broken(self) -> bool:
        """True if the driver reports an error on the queue: it would be readable for ever and never hold anything."""
        poller = select.poll()
        poller.register(self._fd, 0)
        return bool(poller.poll(0))

    def drain(self) -> Drained:
        """Take what is there."""
        faults: list[Fault] = []
        skipped = 0
        for _ in range(_PASSES):
            put = self._pointers[_PUT_BEHIND] % ENTRIES
            if put == self._get:
                break
            while self._get != put:
                fault = decode(self._entry(self._get), self.layout)
                if fault is None:
                    skipped += 1
                else:
                    faults.append(fault)
                self._get = (self._get + 1) % ENTRIES
            # ``ahead`` first: by it the kernel tells whether it has signalled already. Were it last, an event that
            # came between the two would be in the queue without a signal. What came before it is found by looking
            # again.
            self._pointers[_GET_AHEAD] = put
            self._pointers[_GET_BEHIND] = put
        total = sum(self._dropped_counts[_DROPPED_AT:])
        dropped, self._dropped = total - self._dropped, total
        return Drained(faults, skipped, dropped)

    def close(self) -> None:
        """Let go of the address space; safe to call twice.

        If its process is gone, the driver takes the address space apart inside this call, which may take as long as
        a GPU recovers (uvm_release_va_space).
        """
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            for view in self._views:
                view.release()
            self._memory.close()

    def _entry(self, index: int) -> bytes:
        start = index * self.layout.entry_bytes
        return self._memory[start : start + self.layout.entry_bytes]


def _queue_bytes(layout: EventLayout) -> int:
    """Bytes of the queue, in whole pages: the driver maps its pages, and takes no offset into one (map_user_pages)."""
    return -(-ENTRIES * layout.entry_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _create_queue(driver: ToolsDriver, fd: int, uvm_fd: int) -> tuple[EventLayout, mmap.mmap]:
    try:
        return V2, _initialized(driver, fd, uvm_fd, V2)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return V1, _initialized(driver, fd, uvm_fd, V1)


def _initialized(driver: ToolsDriver, fd: int, uvm_fd: int, layout: EventLayout) -> mmap.mmap:
    # Shared memory, as private pages would be copied away from the kernel's eyes when this process forks.
    memory = mmap.mmap(-1, _queue_bytes(layout) + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    control = address + _queue_bytes(layout)
    parameters = bytearray(_INIT.pack(address, ENTRIES, control, 0, uvm_fd, _VERSION, _VERSION, 0, 0))
    driver.call(fd, layout.request, parameters)
    first, second = _INIT.unpack(parameters)[5:7]
    _check("INIT_EVENT_TRACKER", second if first == _VERSION else first)
    return memory


def _check(request: str, status: int) -> None:
    if status == ILLEGAL_ACTION:
        raise NotAVaSpaceError(request, status)
    if status != 0:
        raise UvmStatusError(request, status)
