"""Counts the bytes written to a TCP connection, over all processes that wrote to it, as the kernel does.

The facts, from Linux' net/ipv4 (tcp_input.c, tcp.c, tcp_minisocks.c) and tests/unit/vault/client/test_tcp_progress.py:

* ``tcpi_bytes_acked`` (Linux 4.1) is the sum of all steps of the oldest unacknowledged sequence number, in 64 bits.
* SIOCOUTQ is the number of bytes written and not yet acknowledged, sent or not: the next sequence number to be written
  minus the oldest unacknowledged one. It is less than the send buffer, so 32 bits are enough.
* A SYN and a FIN have a sequence number each. The SYN of an accepted connection is not counted, because its socket is
  created after the SYN was acknowledged; that of a connection opened from this side is counted. The FIN is counted as
  soon as this side has shut its half down.
* If a process is killed during write(2), the bytes that were queued are counted, and no others.
"""

import array
import errno
import fcntl
import os
import socket
import struct
import termios
from typing import Final, NamedTuple

_SIZE: Final = 128
_BYTES_ACKED: Final = struct.Struct("=Q")
_BYTES_ACKED_AT: Final = 120
"""Offset in struct tcp_info (linux/tcp.h): 8 bytes, of which the first is the state; 24 words; two 64-bit rates."""

_ESTABLISHED, _SYN_SENT, _SYN_RECEIVED, _FIN_WAIT_1, _FIN_WAIT_2, _TIME_WAIT, _CLOSED = range(1, 8)
_CLOSE_WAIT, _LAST_ACK, _LISTEN, _CLOSING = range(8, 12)
"""net/tcp_states.h."""

_WRITABLE: Final = frozenset({_ESTABLISHED, _CLOSE_WAIT})
_SHUT: Final = frozenset({_FIN_WAIT_1, _FIN_WAIT_2, _LAST_ACK, _CLOSING})


class _Info(NamedTuple):
    state: int
    bytes_acked: int


def written(sock: socket.socket, *, accepted: bool = True) -> int:
    """Return the number of bytes written to a TCP connection since it was established, by all processes.

    The bytes may still be in transit. An interrupted write is counted as far as it was queued. With kernel TLS (kTLS)
    these are encrypted bytes. While another process writes, the result is outdated as soon as it is returned.

    Args:
        sock: the connection.
        accepted: False for a connection opened from this side, for which the kernel starts counting with 1.

    Raises:
        ConnectionResetError: the connection is over: ended by both sides, reset or timed out.
        OSError: it is not a TCP connection (ENOTCONN, EOPNOTSUPP).
    """
    info = _read_info(sock)
    while True:
        unacknowledged = _unacknowledged(sock)
        again = _read_info(sock)
        # The count never decreases. If it is unchanged, no acknowledgement came in between: the two values match.
        if again == info:
            break
        info = again
    return info.bytes_acked + unacknowledged - (info.state in _SHUT) - (not accepted)


def _read_info(sock: socket.socket) -> _Info:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    if len(info) < _SIZE:
        raise OSError(errno.EOPNOTSUPP, "this kernel does not count the bytes of a connection (before Linux 4.1)")
    state = info[0]
    if state == _CLOSED:
        raise ConnectionResetError(errno.ECONNRESET, "the connection is over")
    if state not in _WRITABLE and state not in _SHUT:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
    return _Info(state, _BYTES_ACKED.unpack_from(info, _BYTES_ACKED_AT)[0])


def _unacknowledged(sock: socket.socket) -> int:
    # SIOCOUTQ has the number of TIOCOUTQ (asm-generic/ioctls.h, linux/sockios.h).
    count = array.array("i", [0])
    fcntl.ioctl(sock, termios.TIOCOUTQ, count)
    return count[0]
