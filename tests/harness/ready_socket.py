"""The service manager's side of sd_notify(3): a datagram socket on which a service says READY=1."""

import select
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Self


class ReadySocket:
    """Owns the socket at `path`; give that path to the service as NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.bind(str(path))

    def wait(self, process: int, timeout: float) -> bool:
        """Wait for READY=1; False if the process behind the pidfd ends first, TimeoutError if neither happens."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            readable, _, _ = select.select([self._socket.fileno(), process], [], [], left)
            if self._socket.fileno() in readable:
                # A service may attach descriptors (FDSTORE=1): the kernel drops them unless they are asked for.
                if b"READY=1" in self._socket.recv(65536, socket.MSG_DONTWAIT).split(b"\n"):
                    return True
            elif process in readable:
                return False
        raise TimeoutError(f"no READY=1 within {timeout:g} s")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self.path.unlink(missing_ok=True)
