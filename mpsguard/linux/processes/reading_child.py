"""A child process that reads /proc for this one, as its owner holds it: a read that never ends is ended with it."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

_REAP_WITHIN: Final = 1.0
"""Seconds for a killed child to go; one that does not is left behind, and its place is not given again."""


class ReadingChild:
    """Owns one reading process and its socket."""

    def __init__(self, program: Path, kind: socket.SocketKind) -> None:
        """Start ``program``, of which standard input and output are a socket of that kind; raise OSError."""
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, kind)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(program)],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                )
        except BaseException:
            self.socket.close()
            raise

    def close(self) -> bool:
        """Kill the child; False if it does not go, for want of being killable."""
        self.socket.close()
        self._process.kill()
        try:
            self._process.wait(_REAP_WITHIN)
        except subprocess.TimeoutExpired:
            return False
        return True
