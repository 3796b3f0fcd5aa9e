"""Xid lines of the kernel log, read from /dev/kmsg by the suite itself: what is measured must not be what measures."""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

KMSG: Final = "/dev/kmsg"
_XID: Final = re.compile(r"NVRM: Xid \([^)]*\): (?P<number>\d+)(?:, pid='?(?P<pid>\d+))?")
_RECORD: Final = 8192
"""Bytes of one record at most (kernel: LOG_LINE_MAX and its prefix)."""


@dataclass(frozen=True)
class XidLine:
    """One line: when (CLOCK_MONOTONIC seconds, as the kernel counts them), which Xid, which pid it names."""

    at: float
    number: int
    pid: int | None


def parse(record: str) -> XidLine | None:
    """One record of /dev/kmsg; None if it is no Xid line."""
    prefix, _, text = record.partition(";")
    fields = prefix.split(",")
    found = _XID.search(text)
    if found is None or len(fields) < 3 or not fields[2].isdigit():
        return None
    pid = found["pid"]
    return XidLine(int(fields[2]) / 1e6, int(found["number"]), int(pid) if pid else None)


class KernelLog:
    """The lines from now on. A machine (or a user) that may not read the log has none: `readable` says so."""

    def __init__(self, path: str = KMSG) -> None:
        self._fd = -1
        with suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)

    @property
    def readable(self) -> bool:
        """Whether there is a log to read."""
        return self._fd >= 0

    def lines(self) -> list[XidLine]:
        """The Xid lines since the last call."""
        found = []
        while self._fd >= 0:
            try:
                record = os.read(self._fd, _RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:  # records were overwritten before they were read: go on with the oldest left
                continue
            if not record:
                break
            if line := parse(record.decode(errors="replace")):
                found.append(line)
        return found

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
