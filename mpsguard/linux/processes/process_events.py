"""The kernel's process events connector: told when chosen processes end or exec, children of any process.

drivers/connector/cn_proc.c and include/uapi/linux/{cn_proc,connector,netlink,filter}.h. It takes CAP_NET_ADMIN and the
initial pid, user and network namespaces; in others the kernel does not even answer.
"""

import ctypes
import errno
import os
import select
import socket
import struct
import time
from enum import IntEnum
from typing import Final, NamedTuple

_NETLINK_CONNECTOR: Final = 11
_CN_IDX_PROC = _CN_VAL_PROC = 1
_NLMSG_DONE: Final = 3
_LISTEN, _IGNORE = 1, 2
_NONE: Final = 0
_HEADERS: Final = struct.Struct("=IHHIIIIIIHH")
"""``struct nlmsghdr`` (length, type, flags, sequence, port), ``struct cn_msg`` (idx, val, seq, ack, length, flags)."""
_ACK: Final = 8
"""Index of cn_msg's ack."""
_EVENT: Final = struct.Struct("=IIQIII")
"""``struct proc_event``: what, cpu, nanoseconds; of an exit: pid, tgid, status; of an exec: pid, tgid; of an
acknowledgement: errno first."""
_PID_AT: Final = _HEADERS.size + 16

_SO_ATTACH_FILTER: Final = 26
_SO_RCVBUFFORCE: Final = 33
_LOAD, _JUMP, _JUMP_IF, _RETURN = 0x20, 0x05, 0x15, 0x06
"""Classic BPF (linux/filter.h): load a word of the packet as big-endian, jump, jump if equal, keep so many bytes."""
_ACCEPT, _REFUSE = (_RETURN, 0, 0, 0xFFFF), (_RETURN, 0, 0, 0)
_FARTHEST: Final = 255
"""Steps that a conditional jump can skip."""
MAX_WATCHED: Final = 500
"""Pids that fit, twice (the old filter and the new), into net.core.optmem_max at its smallest, 20 KiB. A server takes
48 or 60 clients."""

_BUFFER: Final = 4 << 20
_ANSWER_WITHIN: Final = 0.25
_EVENT_WITHIN: Final = 0.02
"""Seconds. The kernel sends the event some microseconds after the pidfd became readable (do_exit, kernel/exit.c)."""


class ProcessEventKind(IntEnum):
    """What the kernel is to tell of (``enum proc_cn_event``)."""

    EXEC = 0x2
    """Sent when the new program is in place and what is close-on-exec is closed, under the pid of the process."""
    EXIT = 0x80000000


class Happened(NamedTuple):
    """What the kernel has told of watched processes."""

    pids: tuple[int, ...]
    complete: bool
    """False if events were lost, which may have been of any of them."""


class ProcessEvents:
    """Owns a connector socket that the kernel tells of one kind of events, filtered there: others' cost nothing.

    pyroute2 has such a socket; it hears of every fork on the machine, and a command name that is no UTF-8 breaks it.
    """

    def __init__(self, kind: ProcessEventKind = ProcessEventKind.EXIT) -> None:
        """Start to listen; OSError with the reason if the kernel refuses or does not answer."""
        self._kind = kind
        self._told: dict[int, int | None] = {}
        of_socket = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, of_socket, _NETLINK_CONNECTOR)
        try:
            self._socket.bind((0, _CN_IDX_PROC))
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
            except PermissionError:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            self._tell(_LISTEN)
            self._acknowledged()
            self._filter()
            # What came before the filter is of strangers.
            self._drain()
        except BaseException:
            self._socket.close()
            raise

    def watch(self, pid: int) -> bool:
        """Keep what the kernel will say of ``pid``'s main thread; False if MAX_WATCHED are watched already."""
        if len(self._told) >= MAX_WATCHED and pid not in self._told:
            return False
        self._told[pid] = None
        self._filter()
        return True

    def forget(self, pid: int) -> None:
        """Stop watching ``pid``, if it is watched."""
        if pid in self._told:
            del self._told[pid]
            self._filter()

    def take(self, pid: int) -> int | None:
        """The wait status of ``pid``, which has ended; None if the kernel says nothing for _EVENT_WITHIN seconds."""
        if pid not in self._told:
            return None
        deadline = time.monotonic() + _EVENT_WITHIN
        while self._drain() and self._told[pid] is None and self._readable(deadline):
            pass
        return self._told[pid]

    def fileno(self) -> int:
        """The socket, for pollers; readable when there is something to take."""
        return self._socket.fileno()

    def happened(self) -> Happened:
        """What was told since the last time. Never waits."""
        complete = self._drain()
        pids = tuple(pid for pid, told in self._told.items() if told is not None)
        self._told.update(dict.fromkeys(pids))
        return Happened(pids, complete)

    def close(self) -> None:
        """Stop listening; safe to call twice."""
        if self._socket.fileno() >= 0:
            # Before 6.6 the kernel counts listeners by these messages only, not by open sockets.
            self._tell(_IGNORE)
            self._socket.close()

    def _tell(self, operation: int) -> None:
        length = _HEADERS.size + 4
        headers = (length, _NLMSG_DONE, 0, 0, 0, _CN_IDX_PROC, _CN_VAL_PROC, 0, os.getpid(), 4, 0)
        self._socket.send(_HEADERS.pack(*headers) + struct.pack("=I", operation))

    def _acknowledged(self) -> None:
        deadline = time.monotonic() + _ANSWER_WITHIN
        while self._readable(deadline):
            try:
                message = self._socket.recv(4096)
            except OSError as error:
                # A busy machine can overrun us here, before the filter is set.
                if error.errno == errno.ENOBUFS:
                    continue
                raise
            what, _, _, refused, *_ = _EVENT.unpack_from(message, _HEADERS.size)
            if what == _NONE and _HEADERS.unpack_from(message)[_ACK] == os.getpid() + 1:
                if refused:
                    raise OSError(refused, os.strerror(refused))
                return
        raise TimeoutError("the kernel does not answer (it must be the first pid and user namespace)")

    def _filter(self) -> None:
        program = [
            (_LOAD, 0, 0, _HEADERS.size),
            (_JUMP_IF, 1, 0, socket.htonl(self._kind)),
            _REFUSE,
            (_LOAD, 0, 0, _PID_AT),
        ]
        pids = list(self._told)
        for start in range(0, len(pids), _FARTHEST):
            some = pids[start : start + _FARTHEST]
            # Every match jumps to the one _ACCEPT behind the group; without a match, the filter jumps over it.
            program += [(_JUMP_IF, len(some) - at, 0, socket.htonl(pid)) for at, pid in enumerate(some)]
            program += [(_JUMP, 0, 0, 1), _ACCEPT]
        program.append(_REFUSE)
        steps = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
        # struct sock_fprog; the kernel copies the steps.
        described = struct.pack("HP", len(program), ctypes.addressof(steps))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)

    def _readable(self, deadline: float) -> bool:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))

    def _drain(self) -> bool:
        """Read what is there; False if events were lost, so that waiting for one may be in vain."""
        complete = True
        while True:
            try:
                message, sender = self._socket.recvfrom(4096)
            except BlockingIOError:
                return complete
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                complete = False
                continue
            if sender[0] != 0 or len(message) < _HEADERS.size + _EVENT.size:
                continue
            what, _, _, pid, _, status = _EVENT.unpack_from(message, _HEADERS.size)
            # The first one counts: what comes later under the same number is of a successor.
            if what == self._kind and pid in self._told and self._told[pid] is None:
                self._told[pid] = status
