"""The command line side: reads commands, shows replies.

As the vendor's: `control_privileged` first, which only the daemon's own user can open, else `control`; commands from
the argument list or from stdin until EOF, in pieces of at most 4095 bytes.
"""

import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from fault_injection.sim.wire import HELLO, Channel, Peer

_HEAD = struct.Struct("i")
_PIECE = 4095
_SHOWN = 4096
"""Bytes of a reply line; the rest is lost."""


def lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream as fgets(3) gives them; what follows a NUL in one is lost."""
    while piece := stream.readline(_PIECE):
        yield piece.split(b"\0")[0]


def run(pipe_directory: Path, lines: Iterable[bytes]) -> int:
    """Send every line, print every reply; the exit status is the daemon's."""
    channel = _connect(pipe_directory)
    if channel is None:
        print("Cannot find MPS control daemon process", file=sys.stderr)
        return 1
    if channel.receive().data != HELLO or not channel.send_credentials() or not channel.send_int(Peer.UI):
        print("Cannot authenticate or connect to MPS control daemon process", file=sys.stderr)
        return 1
    for line in lines:
        command = line + b"\0"
        if not (channel.send_int64(len(command)) and channel.send(command)):
            print("Cannot send command to MPS control daemon process", file=sys.stderr)
            return 1
    channel.send_int64(0)
    while data := channel.receive().data:
        if _HEAD.unpack_from(data)[0] == 0:
            sys.stdout.buffer.write(data[_HEAD.size :][:_SHOWN].split(b"\0")[0] + b"\n")
            sys.stdout.buffer.flush()
        else:
            return int(_HEAD.unpack_from(data, _HEAD.size)[0])
    return 1


def _connect(pipe_directory: Path) -> Channel | None:
    for name in ("control_privileged", "control"):
        try:
            return Channel.connect(str(pipe_directory / name))
        except OSError:
            continue
    return None
