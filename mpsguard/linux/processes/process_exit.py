"""How a process ended that is no child of this one: exit code or signal, without polling and without ptrace.

A zombie says it in field 52 of ``/proc/PID/stat`` (proc_pid_stat(5), Linux 3.5; the value of wait(2)). Once its parent
has reaped it, that is gone, and parents are quick. What is left then:

* Linux 6.15: ``ioctl(pidfd, PIDFD_GET_INFO)`` with PIDFD_INFO_EXIT (include/uapi/linux/pidfd.h). The kernel fills it in
  when it reaps (fs/pidfs.c, ``pidfs_exit`` called by ``release_task``): nothing for a zombie; for the reaped as long as
  a pidfd is open that was opened before. Tried on 6.18: each process has one or the other at every moment.
* before: the process events connector (`process_events`). It takes CAP_NET_ADMIN and the initial pid, user and network
  namespaces, and the kernel may drop an event. If the main thread ended before the
  others, its own status is reported for the process; the other two sources have it right.
"""

import fcntl
import os
import select
import signal
import struct
import threading
from contextlib import suppress
from enum import StrEnum
from typing import Final, NamedTuple, Self

from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.process_events import ProcessEvents

_LINE: Final = 4096
_STATE, _EXIT_CODE = 0, 49
"""Indexes of fields 3 and 52 of /proc/PID/stat behind the parenthesised command."""

_PIDFD_INFO: Final = struct.Struct("QQ11Ii")
"""The first published size of ``struct pidfd_info``: mask, cgroup, ids, exit code."""
_PIDFD_GET_INFO: Final = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT: Final = 1 << 3
_PIDFD_THREAD: Final = os.O_EXCL
"""Linux 6.9: a pidfd of one thread."""

_CORE_DUMPED: Final = 0x80


class ExitStatus(NamedTuple):
    """How a process ended; neither exit code nor signal if that is unknown."""

    exit_code: int | None = None
    signal: int | None = None
    core_dumped: bool = False

    @classmethod
    def of(cls, status: int) -> Self:
        """Take a wait(2) status apart."""
        number = status & 0x7F
        if number:
            return cls(signal=number, core_dumped=bool(status & _CORE_DUMPED))
        return cls(exit_code=status >> 8 & 0xFF)


UNKNOWN: Final = ExitStatus()


class Mechanism(StrEnum):
    """What tells of processes that have been reaped."""

    PIDFD = "pidfd"
    EVENTS = "process events"
    ZOMBIES = "zombies"
    """Nothing does: the end of a process that was reaped at once stays unknown."""


class ExitWatch:
    """Tells how processes ended. `watch` each while it lives, ask once its pidfd is readable and still open."""

    def __init__(self, mechanism: Mechanism) -> None:
        """Use one mechanism; OSError if it is EVENTS and the kernel does not let us."""
        self.mechanism = mechanism
        self.detail = f"by {mechanism}"
        self._events = ProcessEvents() if mechanism is Mechanism.EVENTS else None

    @classmethod
    def open(cls) -> Self:
        """Choose the best mechanism of this kernel; ``detail`` says which, and why not a better one."""
        if pidfd_tells():
            return cls(Mechanism.PIDFD)
        try:
            return cls(Mechanism.EVENTS)
        except OSError as error:
            chosen = cls(Mechanism.ZOMBIES)
            chosen.detail = f"only of processes whose parents are slow to reap them: process events: {error}"
            return chosen

    def watch(self, handle: ProcessHandle) -> None:
        """Be ready for the end of a process; once for each."""
        if self._events is not None:
            self._events.watch(handle.key.pid)
            # Had it ended before, the first event of its pid might be a successor's.
            if not handle.alive():
                self._events.forget(handle.key.pid)

    def forget(self, handle: ProcessHandle) -> None:
        """The end of this process is of no interest any more."""
        if self._events is not None:
            self._events.forget(handle.key.pid)

    def exit_status(self, handle: ProcessHandle) -> ExitStatus:
        """How the process ended; unknown while it lives, and where the kernel did not say."""
        if handle.alive():
            return UNKNOWN
        status = _of_zombie(handle)
        # Reaped since, or we may not look: the kernel has recorded a reaped one's status before /proc lost it.
        if status is None and self.mechanism is Mechanism.PIDFD:
            status = _of_reaped(handle.fileno())
        elif status is None and self._events is not None:
            status = self._events.take(handle.key.pid)
        self.forget(handle)
        return UNKNOWN if status is None else ExitStatus.of(status)

    def close(self) -> None:
        """Give the kernel's events back; safe to call twice."""
        if self._events is not None:
            self._events.close()


def status_before_reaping(pid: int) -> ExitStatus:
    """How a process ended that has ended, and that the caller keeps from being reaped; unknown if it is not there."""
    try:
        directory = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            status = _status_in(directory)
        finally:
            os.close(directory)
    except OSError:
        return UNKNOWN
    return UNKNOWN if status is None else ExitStatus.of(status)


def pidfd_tells() -> bool:
    """Whether this kernel's pidfds tell how a reaped process ended: tried on a thread that ends, which reaps itself."""
    thread_id: list[int] = []
    started, may_end = threading.Event(), threading.Event()

    def body() -> None:
        thread_id.append(threading.get_native_id())
        started.set()
        may_end.wait()

    thread = threading.Thread(target=body, name="pidfd-probe", daemon=True)
    thread.start()
    started.wait()
    try:
        pidfd = os.pidfd_open(thread_id[0], _PIDFD_THREAD)
    except OSError:
        return False
    finally:
        may_end.set()
        thread.join()
    try:
        reaped = select.poll()
        reaped.register(pidfd, 0)
        reaped.poll(1000)
        return _of_reaped(pidfd) is not None
    finally:
        os.close(pidfd)


def _of_zombie(handle: ProcessHandle) -> int | None:
    """The wait status of a process that has ended and was not reaped yet, or None."""
    try:
        # The directory is of the process that had the number when it was opened: this one, if it still is there to be
        # reaped (ESRCH says it is not). Its start time would not do: a successor of its pid can have come within the
        # same clock tick. Nor may a successor's be read, which may never end (`stat_reader`).
        directory = os.open(f"/proc/{handle.key.pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(PermissionError):
                signal.pidfd_send_signal(handle.fileno(), 0)
            return _status_in(directory)
        finally:
            os.close(directory)
    except OSError:
        return None


def _status_in(directory: int) -> int | None:
    """The wait status in a zombie's directory under /proc, or None."""
    fd = os.open("stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        stat = os.read(fd, _LINE)
    finally:
        os.close(fd)
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[_STATE] not in (b"Z", b"X"):
        return None
    status = int(fields[_EXIT_CODE])
    if status == 0:
        # Without permission, 0 is shown (fs/proc/array.c, ``permitted``). This link takes the same permission.
        os.readlink("ns/user", dir_fd=directory)
    return status


def _of_reaped(pidfd: int) -> int | None:
    """The wait status of a process that was reaped while ``pidfd`` was open, or None."""
    info = bytearray(_PIDFD_INFO.size)
    struct.pack_into("Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        # ENOTTY before 6.13, ESRCH before 6.15, EREMOTE for a process of a pid namespace that is not below ours.
        return None
    mask, *_, status = _PIDFD_INFO.unpack(info)
    return status if mask & _PIDFD_INFO_EXIT else None
