"""The logs: all processes write records into the FIFO `log`, and the daemon turns them into lines of two files.

Record and line format as seen on driver 580.159.04; records of the control daemon go to control.log, all others to
server.log.
"""

import os
import struct
import sys
import threading
import time
from enum import IntEnum
from pathlib import Path

# kind and magic, pid, year, month, day, weekday, hour, minute, second, millisecond, length of the text
_HEADER = struct.Struct("=I9iq")
_RECORD = 0xABCDE000
_STOP = 0xEDCBA000


class Origin(IntEnum):
    """The kind of process that wrote a record; the low byte of its first word."""

    CONTROL = 0
    SERVER = 1
    OTHER = 3


_NAMES = {Origin.CONTROL: "Control", Origin.SERVER: "Server", Origin.OTHER: "Other"}


class Log:
    """A writer's end of the FIFO."""

    def __init__(self, fifo: Path) -> None:
        self._fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(self._fd, True)

    def say(self, origin: Origin, text: str, *, pid: int | None = None) -> None:
        """Write one record; a record is smaller than PIPE_BUF and so never torn."""
        now = time.time()
        t = time.localtime(now)
        body = text.encode(errors="surrogateescape")[:3000]
        header = _HEADER.pack(
            _RECORD | origin, pid or os.getpid(), t.tm_year, t.tm_mon, t.tm_mday, (t.tm_wday + 1) % 7, t.tm_hour,
            t.tm_min, t.tm_sec, int(now * 1000) % 1000, len(body),
        )  # fmt: skip
        try:
            os.write(self._fd, header + body)
        except BrokenPipeError:
            return

    def stop(self) -> None:
        """Tell the recorder that this was the last record."""
        os.write(self._fd, _HEADER.pack(_STOP, os.getpid(), *([0] * 8), 0))


class Recorder:
    """The reading end: a thread of the control daemon, as in the vendor's."""

    def __init__(self, fifo: Path, directory: Path) -> None:
        fifo.unlink(missing_ok=True)
        os.mkfifo(fifo)
        fifo.chmod(0o777)
        self._fifo = os.open(fifo, os.O_RDWR | os.O_CLOEXEC)
        self._control, self._server = _open(directory / "control.log"), _open(directory / "server.log")
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until everything said before `Log.stop` is in the files."""
        self._thread.join()

    def _run(self) -> None:
        pending = b""
        while True:
            pending += os.read(self._fifo, 65536)
            lines: dict[int, list[bytes]] = {}
            while len(pending) >= _HEADER.size:
                first, pid, *when, length = _HEADER.unpack_from(pending)
                if first == _STOP:
                    self._write(lines)
                    return
                if len(pending) < _HEADER.size + length:
                    break
                text = pending[_HEADER.size : _HEADER.size + length]
                pending = pending[_HEADER.size + length :]
                origin = Origin(first & 0xFF)
                year, month, day, _weekday, hour, minute, second, millisecond = when
                stamp = f"{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{millisecond:03}"
                line = f"[{stamp} {_NAMES[origin]} {pid:5}] ".encode() + text.removesuffix(b"\n") + b"\n"
                lines.setdefault(self._control if origin is Origin.CONTROL else self._server, []).append(line)
            self._write(lines)

    @staticmethod
    def _write(lines: dict[int, list[bytes]]) -> None:
        for fd, batch in lines.items():
            os.write(fd, b"".join(batch))


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError:
        print(
            f"Warning: Failed writing log files to directory [{path.parent}]. No logs will be available.",
            file=sys.stderr,
        )
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
