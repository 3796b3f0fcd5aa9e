"""server.log and control.log as evidence: begin and end of faults, and the clients blamed or torn down.

`mpsguard.guard.daemon_log` has the words. Those of other drivers are assumed to be the same.

All of it is hearsay: the daemons write control.log with the words of every user that sends a command, and other
users' programs may write to either file.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from mpsguard.guard import daemon_log
from mpsguard.guard.daemon_log import (
    BEGINS,
    CULPRIT,
    ENDS,
    EXITED,
    NEW_CONTEXT,
    OTHER_LIST,
    STICKY,
    STICKY_LIST,
    TEARDOWN,
    UNDER_WAY,
    LogLine,
    parse_line,
)
from mpsguard.guard.evidence import Evidence, ServerSays, Source, Trust
from mpsguard.guard.sensors.sensor import SensorState
from mpsguard.linux.files.inotify import FileWatch
from mpsguard.linux.files.log_tail import LogTail
from mpsguard.linux.identity import PID_LIMIT

T = TypeVar("T")

_PLAUSIBLE: Final = 60.0
"""Seconds that a line may be old when it is read."""
_MOST_SERVERS: Final = 64
"""Servers that are remembered: a lane has one; a user that writes to its log can make up others."""
_MOST_CLIENTS: Final = 1024
"""Clients of one fault that are told of. A GPU has 60 MPS clients at most."""
_RESOLUTION: Final = 0.002
"""Seconds: the log has milliseconds, and does not say how it rounds them."""


class LogReader:
    """Lines in, what they tell out. Keeps what a line can only mean after the ones before it."""

    def __init__(self) -> None:
        self._list: dict[int, str] = {}
        """Server to what the bare numbers mean that it writes next."""
        self._torn_down: dict[int, set[int]] = {}
        """Server to the clients of its present fault that have been told of."""

    def read(self, line: LogLine) -> Iterator[ServerSays]:
        """What ``line`` says; nothing for most."""
        if line.text.isascii() and line.text.isdigit() and line.pid in self._list:
            client = int(line.text[:11])
            if self._list[line.pid] == STICKY_LIST and client < PID_LIMIT:
                yield ServerSays(STICKY, line.pid, client)
            return
        self._list.pop(line.pid, None)
        found = daemon_log.meaning(line)
        if found is not None:
            yield from self._meaning(found.what, line.pid, found.numbers)

    def _meaning(self, meaning: str, server: int, numbers: Mapping[str, int]) -> Iterator[ServerSays]:
        client = numbers.get("client") or None
        if meaning in (STICKY_LIST, OTHER_LIST):
            _remember(self._list, server, meaning)
        elif meaning == BEGINS or (meaning == UNDER_WAY and server not in self._torn_down):
            _remember(self._torn_down, server, set())
            yield ServerSays(BEGINS, server)
        elif meaning == CULPRIT:
            yield ServerSays(CULPRIT, server, client)
        elif meaning == TEARDOWN and client is not None:
            # Up to three lines a client say the same.
            told = self._torn_down.get(server)
            if told is None:
                told = _remember(self._torn_down, server, set())
            if client not in told and len(told) < _MOST_CLIENTS:
                told.add(client)
                yield ServerSays(TEARDOWN, server, client)
        elif meaning == ENDS or (meaning == NEW_CONTEXT and server in self._torn_down):
            # A first context is made without a fault; one is only destroyed after one (or at the server's end).
            self._torn_down.pop(server, None)
            yield ServerSays(ENDS, server)
        elif meaning == EXITED:
            exited = numbers["server"]
            self._torn_down.pop(exited, None)
            yield ServerSays(EXITED, exited)


def _remember(servers: dict[int, T], server: int, what: T) -> T:
    """Put it in, and forget the server that has been there for longest if they are too many."""
    servers[server] = what
    if len(servers) > _MOST_SERVERS:
        del servers[next(iter(servers))]
    return what


class DaemonLogSensor:
    """Emits what one log tells, line by line as it is written. Owns one inotify descriptor.

    ``tail`` stands where reading is to begin. No process is named: a log has pids, and which process had one is known
    to the part that saw the clients come. ``lane``: the lane with this log.
    """

    def __init__(
        self, emit: Callable[[Evidence], None], source: Source, path: Path, tail: LogTail, *, lane: str | None = None
    ) -> None:
        self._emit, self._source, self._tail, self._lane = emit, source, tail, lane
        self._reader = LogReader()
        self._watch: FileWatch | None = None
        self._lines = 0
        try:
            self._watch = FileWatch(path, self._grew)
        except OSError as error:
            # A daemon that cannot write its log runs without one.
            self._state = SensorState(present=False, detail=f"{path}: {error.strerror}")
            return
        self._state = SensorState(present=True, detail=f"reading {path}")
        # What was written between the making of ``tail`` and that of the watch.
        self._grew()

    @property
    def name(self) -> str:
        """serverlog or controllog."""
        return self._source.value

    def state(self) -> SensorState:
        """Whether the log is being read, and why not."""
        return self._state

    def close(self) -> None:
        """Stop reading; safe to call twice."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
            self._state = SensorState(present=False, detail="closed")

    def _grew(self) -> None:
        for text in self._tail.read():
            self._lines += 1
            line = parse_line(text)
            if line is None:
                continue
            for number, says in enumerate(self._reader.read(line)):
                self._say(line, says, f"{self._source}:{line.pid}:{line.stamp}:{self._lines}.{number}")

    def _say(self, line: LogLine, says: ServerSays, serial: str) -> None:
        observed, now = time.monotonic(), time.time()
        # The two clocks are not read at once.
        apart = time.monotonic() - observed
        happened = None if line.stamp is None else observed - (now - line.stamp)
        # A daemon with another TZ than ours, or a clock that was set meanwhile: the time of the line is no time then.
        if happened is not None and not -_PLAUSIBLE < happened - observed < _RESOLUTION:
            happened = None
        self._emit(
            Evidence(
                source=self._source,
                observed_at=observed,
                what=msgspec.structs.replace(says, lane=self._lane),
                happened_at=None if happened is None else min(happened, observed),
                uncertainty=0.0 if happened is None else _RESOLUTION + apart,
                # The client that the server says "encountered a fatal GPU error" was an innocent one in 24 of 27
                # faults where the UVM queue had proof (H200, 580.159.04).
                trust=Trust.NONE,
                serial=serial,
            )
        )
