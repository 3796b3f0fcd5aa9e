"""A child process that reads /proc for this one, as its owner holds it: a read that never ends is ended with it."""

import os
import socket
import sys
from pathlib import Path
from typing import Final

from mpsguard.linux.processes.helper_process import HelperProcess, service_environment

_REAP_WITHIN: Final = 1.0
"""Seconds for a killed child to go; one that does not is left behind, and its place is not given again."""


class ReadingChild:
    """Owns one reading process and its socket."""

    def __init__(self, program: Path, kind: socket.SocketKind) -> None:
        """Start ``program``, of which standard input and output are a socket of that kind; raise OSError."""
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, kind)
        try:
            with theirs:
                self._process = HelperProcess(
                    # It imports nothing but what Python has loaded itself.
                    [sys.executable, "-I", "-S", str(program)],
                    service_environment(os.environ),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                )
        except BaseException:
            self.socket.close()
            raise

    def close(self) -> bool:
        """Kill the child; False if it does not go, for want of being killable."""
        self.socket.close()
        self._process.kill()
        return self._process.wait(_REAP_WITHIN) is not None
