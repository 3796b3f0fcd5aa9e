"""A service manager for the scenes, which keeps descriptors and hands them over."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

from mpsguard.linux.systemd import service_manager

_FIRST: Final = 512
"""Above all descriptors of a test; each guard gets other numbers, since threads of the one before may still close its.
"""


class Manager:
    """A STAND-IN for the service manager, on a thread: it keeps what it is sent, as systemd does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        """For what is kept: a guard that has ended may still have something to say."""
        self._first = _FIRST
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._thread = threading.Thread(target=self._serve, name="manager")
        self._thread.start()

    def _serve(self) -> None:
        while True:
            data, fds, _, _ = socket.recv_fds(self._socket, 4096, 8)
            lines = dict(line.split("=", 1) for line in data.decode().split("\n") if line)
            name = lines.get("FDNAME", "")
            with self._lock:
                if "FDSTORE" in lines:
                    self.kept.setdefault(name, []).extend(fds)
                    continue
                for fd in (*fds, *(self.kept.pop(name, []) if "FDSTOREREMOVE" in lines else ())):
                    os.close(fd)
            if "END" in lines:
                return

    @contextmanager
    def handing_over(self) -> Iterator[None]:
        """Hand copies of all that it keeps to the guard that begins in the block, as the next one of its service.

        They lie from `_FIRST` on, and not from 3 on, where a test has descriptors of its own.
        """
        with self._lock:
            kept = [(fd, name) for name, fds in self.kept.items() for fd in fds]
            copies = [os.dup2(fd, self._first + index) for index, (fd, _) in enumerate(kept)]
        os.environ["LISTEN_PID"] = str(os.getpid())
        os.environ["LISTEN_FDS"] = str(len(kept))
        os.environ["LISTEN_FDNAMES"] = ":".join(name for _, name in kept)
        try:
            with patch.object(service_manager, "_FIRST_FD", self._first):
                yield
        finally:
            self._first += len(kept)
            if os.environ.pop("LISTEN_PID", None) is not None:
                # It did not come to take them.
                for fd in copies:
                    os.close(fd)

    def close(self) -> None:
        """End the thread, and close what it keeps."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"END=1", str(self.path))
        self._thread.join()
        self._socket.close()
        for fds in self.kept.values():
            for fd in fds:
                os.close(fd)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Have NOTIFY_SOCKET name it."""
        os.environ["NOTIFY_SOCKET"] = str(self.path)
        try:
            yield
        finally:
            del os.environ["NOTIFY_SOCKET"]
