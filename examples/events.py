"""Event log of a run, for measurements: one JSON object a line, each with ``ns`` of CLOCK_MONOTONIC."""

import json
import os
import time
from typing import Any, Self


class Events:
    """Owns the descriptor; a line is one write(2), so that processes can share a file."""

    def __init__(self, target: str | None) -> None:
        """Open the log; raise OSError.

        Args:
            target: a descriptor's number, a file's path (appended to), or None: events are discarded.
        """
        self._fd: int | None = None
        if target is not None and target.isdecimal():
            self._fd = os.dup(int(target))
        elif target is not None:
            self._fd = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, event: str, at: int | None = None, **more: Any) -> None:
        """Write one line, with the current time or ``at`` (ns)."""
        if self._fd is not None:
            line = {"event": event, "ns": time.monotonic_ns() if at is None else at, "pid": os.getpid(), **more}
            os.write(self._fd, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Close the descriptor; safe to call twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
