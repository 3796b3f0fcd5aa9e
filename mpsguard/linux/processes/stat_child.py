"""One reading process of `stat_reader`, as its owner holds it; `stat_reader_child` is what runs in it."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

_REAP_WITHIN: Final = 1.0
"""Seconds for a killed child to go; one that does not is left behind, and its place is not given again."""
_CHILD: Final = Path(__file__).with_name("stat_reader_child.py")


class StatChild:
    """Owns one reading process and its socket."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_CHILD)],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                )
        except BaseException:
            self.socket.close()
            raise
        self.socket.setblocking(False)

    def close(self) -> bool:
        """Kill the child; False if it does not go, for want of being killable."""
        self.socket.close()
        self._process.kill()
        try:
            self._process.wait(_REAP_WITHIN)
        except subprocess.TimeoutExpired:
            return False
        return True
