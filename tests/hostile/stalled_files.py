"""A file system with one file, pages that never come and a close(2) that never returns: made with FUSE, by hand."""

import ctypes
import errno
import os
import struct
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

_HEADER = struct.Struct("=IIQQIIIHH")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _FLUSH, _INIT, _INTERRUPT, _BATCH_FORGET = 1, 2, 3, 14, 15, 25, 26, 36, 42
_KEEP_CACHE = 2
"""FOPEN_KEEP_CACHE (<linux/fuse.h>)."""
_libc = ctypes.CDLL(None, use_errno=True)


def _attributes(node: int) -> bytes:
    mode, size = (0o040755, 0) if node == 1 else (0o100644, 4096)
    return struct.pack("=6Q10I", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


class StalledFiles:
    """The mount; closing it gives each process that waits for an answer an error."""

    def __init__(self, directory: Path, *, flushes: bool = True) -> None:
        """Mount it on ``directory``; without ``flushes``, a process that closes the file waits, too."""
        self.directory = directory
        self.file = directory / "file"
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if _libc.mount(b"stalled", os.fsencode(directory), b"fuse", 0, options) < 0:
            number = ctypes.get_errno()
            os.close(self._fd)
            raise OSError(number, os.strerror(number))
        self._flushes = flushes
        self.asked = threading.Event()
        """Set once a process waits for a page."""
        self.closing = threading.Semaphore(0)
        """Released for each close(2) of the file."""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmount it; safe to call twice. Before that, a process that waits for a page cannot be killed."""
        if self._fd < 0:
            return
        subprocess.run(["umount", "-f", str(self.directory)], check=False, capture_output=True)
        subprocess.run(["umount", "-l", str(self.directory)], check=False, capture_output=True)
        self._thread.join(30)
        os.close(self._fd)
        self._fd = -1

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._fd, 1 << 17)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                return
            _, kind, unique, node, *_ = _HEADER.unpack_from(request)
            if kind == _READ:
                self.asked.set()
            if kind == _FLUSH:
                self.closing.release()
            if kind == _READ or (kind == _FLUSH and not self._flushes):
                continue
            if kind not in (_FORGET, _INTERRUPT, _BATCH_FORGET):
                answer = self._answer(kind, node)
                code = -errno.ENOSYS if answer is None else 0
                body = answer or b""
                with suppress(OSError):  # the asker has ended, or the mount has: the next read tells
                    os.write(self._fd, struct.pack("=IiQ", 16 + len(body), code, unique) + body)

    @staticmethod
    def _answer(kind: int, node: int) -> bytes | None:
        if kind == _INIT:
            return struct.pack("=4I2H2I2H8I", 7, 31, 0, 0, 0, 0, 4096, 1, 1, 0, *([0] * 8))
        if kind == _LOOKUP:
            return struct.pack("=4Q2I", 2, 0, 3600, 3600, 0, 0) + _attributes(2)
        if kind == _GETATTR:
            return struct.pack("=Q2I", 3600, 0, 0) + _attributes(node)
        if kind == _OPEN:
            # Else an open would wait for the page that another process waits for, to throw it away.
            return struct.pack("=Q2I", 0, _KEEP_CACHE, 0)
        return None
