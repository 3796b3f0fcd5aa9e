"""How far a TCP connection has come, as the kernel counts it, whoever wrote to it.

The facts, from Linux' net/ipv4 (tcp_input.c, tcp.c, tcp_minisocks.c) and tests/unit/client/test_stream.py:

* ``tcpi_bytes_acked`` (Linux 4.1) is the sum of all steps of the oldest unacknowledged sequence number, in 64 bits.
* SIOCOUTQ is what was written and is not yet acknowledged, whether it was sent or not: the next sequence number to be
  written less the oldest unacknowledged one. It is less than the send buffer, so that 32 bits are enough.
* A SYN and a FIN have a sequence number each. The SYN of a connection that was accepted is not counted, since its
  socket is made when it has been acknowledged already; that of a connection that was opened from here is. The FIN is
  counted as soon as this side has shut its half down.
* What a write(2) put into the queue before its process was killed is in the queue, and counts; nothing else does.
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
"""linux/tcp.h, struct tcp_info: eight bytes, of which the first is the state; 24 words; two rates of 64 bits."""

_ESTABLISHED, _SYN_SENT, _SYN_RECEIVED, _FIN_WAIT_1, _FIN_WAIT_2, _TIME_WAIT, _CLOSED = range(1, 8)
_CLOSE_WAIT, _LAST_ACK, _LISTEN, _CLOSING = range(8, 12)
"""net/tcp_states.h."""

_WRITABLE: Final = frozenset({_ESTABLISHED, _CLOSE_WAIT})
_SHUT: Final = frozenset({_FIN_WAIT_1, _FIN_WAIT_2, _LAST_ACK, _CLOSING})


class _Look(NamedTuple):
    state: int
    bytes_acked: int


def written(sock: socket.socket, *, accepted: bool = True) -> int:
    """Bytes written to a TCP connection since it was established, by whatever processes, with or without an answer.

    They are on their way, or have arrived; those of a write that was broken off are counted as far as it came. With TLS
    of the kernel (kTLS) they are the encrypted ones. ``accepted``: False for a connection that was opened from this
    side, whose count the kernel begins with 1.

    While another process writes, the count is old when it is returned. ConnectionResetError if the connection is
    over: ended by both sides, reset or timed out. OSError if it is not a TCP connection (ENOTCONN, EOPNOTSUPP).
    """
    look = _look(sock)
    while True:
        unacknowledged = _unacknowledged(sock)
        again = _look(sock)
        # The count only rises. If it did not, no acknowledgement came in between, and the two belong together.
        if again == look:
            break
        look = again
    return look.bytes_acked + unacknowledged - (look.state in _SHUT) - (not accepted)


def _look(sock: socket.socket) -> _Look:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    if len(info) < _SIZE:
        raise OSError(errno.EOPNOTSUPP, "this kernel does not count the bytes of a connection (before Linux 4.1)")
    state = info[0]
    if state == _CLOSED:
        raise ConnectionResetError(errno.ECONNRESET, "the connection is over")
    if state not in _WRITABLE and state not in _SHUT:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
    return _Look(state, _BYTES_ACKED.unpack_from(info, _BYTES_ACKED_AT)[0])


def _unacknowledged(sock: socket.socket) -> int:
    # SIOCOUTQ has the number of TIOCOUTQ (asm-generic/ioctls.h, linux/sockios.h).
    count = array.array("i", [0])
    fcntl.ioctl(sock, termios.TIOCOUTQ, count)
    return count[0]
