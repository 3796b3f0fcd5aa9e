"""server.log and control.log as evidence: when a fault begins and ends, whom the server blames, whom it tears down.

The words are those of driver 580.159.04, taken from logs of real faults on an H200. The exit of a server is worded the
same by 535 and 550, whose control daemons were run without a GPU; the rest of their words is assumed to be the same,
and the lines nobody here knows are counted, so that it shows when that is wrong.

All of it is hearsay: the daemons write control.log with the words of whoever sends a command, and other people's
programs may write to either file.
"""

import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

import msgspec

from mpsguard.evidence import Evidence, ServerSays, Source, Trust
from mpsguard.linux.inotify import FileWatch
from mpsguard.sensors.state import SensorState

_HEAD: Final = re.compile(
    r"\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) +(?P<who>Server|Legacy Server|Control|Other) +"
    r"(?P<pid>\d{1,9})\] ?(?P<text>.*)$",
    re.ASCII,
)
_CLIENT: Final = r"Client \{PID: (?P<client>\d{1,9}), Context(?: ID)?: \d+\}"

_PLAUSIBLE: Final = 60.0
"""Seconds that a line may be old when it is read."""
_RESOLUTION: Final = 0.002
"""Seconds: the log has milliseconds, and does not say how it rounds them."""

BEGINS: Final = "fault_begins"
ENDS: Final = "fault_ends"
CULPRIT: Final = "culprit"
TEARDOWN: Final = "teardown"
STICKY: Final = "sticky"
EXITED: Final = "server_exited"

_STICKY_LIST: Final = "sticky list"
_OTHER_LIST: Final = "other list"
_UNDER_WAY: Final = "under way"
_NEW_CONTEXT: Final = "new context"

_PATTERNS: Final = tuple(
    (re.compile(pattern, re.ASCII), meaning)
    for pattern, meaning in (
        (r"Server is handling a fatal GPU error", BEGINS),
        (_CLIENT + r" encountered a fatal GPU error", CULPRIT),
        (_CLIENT + r" on (?:device|the error-trigging process) \d+ to be torn down", TEARDOWN),
        # Not an accusation: for a fault of the SMs it says so of every client.
        (r"All clients belonging to error trigging process (?P<client>\d{1,9}) will be torn down", TEARDOWN),
        (r"The following client process(?:es)? have a sticky error set:", _STICKY_LIST),
        (r"The following devices will be reset:", _OTHER_LIST),
        (r"Server teardown in progress|Failed to accept client .* with status 807", _UNDER_WAY),
        (r"Destroy server context on device", ENDS),
        (r"Creating server context on device", _NEW_CONTEXT),
        (r"Server (?P<server>\d{1,9}) exited with status", EXITED),
    )
)
_ROUTINE: Final = re.compile(
    r"Received new client request|Creating worker thread|Worker created|Client process \d+ disconnected"
    r"|Client \{[^}]*\} (?:connected|exiting)|Status of client \{|Server failed to recevie command"
    r"|Receive command failed"
    r"|Device .* is associated|Device pinned memory limit|Active Threads Percentage|Client Priority|Server Priority"
    r"|Received device query command|Created (?:anonymous|named) shared memory|CUDA MPS Server|Display Driver version"
    r"|Server has started|Client termination|Using log directory|Startup|Start$|Initializing server process"
    r"|Connecting to control daemon|MPS Server connecting to control daemon",
    re.ASCII,
)


class LogLine(msgspec.Struct, frozen=True):
    """One line of a daemon's log."""

    stamp: float | None
    """UNIX seconds; the log has local time, without a zone."""
    control: bool
    """Written by the control daemon, which also writes down what it is asked and what it answers."""
    pid: int
    text: str


class Tail(Protocol):
    """What follows a log (`mpsguard.mps.server_log.LogTail`)."""

    def read(self) -> list[str]:
        """Whole lines that came since the last call."""
        ...


def parse_line(line: str) -> LogLine | None:
    """A line as the daemons write them, or None."""
    found = _HEAD.match(line)
    if found is None:
        return None
    try:
        stamp = datetime.strptime(found["stamp"], "%Y-%m-%d %H:%M:%S.%f").timestamp()
    except (ValueError, OverflowError, OSError):
        stamp = None
    return LogLine(stamp, found["who"] == "Control", int(found["pid"]), found["text"])


class LogReader:
    """Lines in, what they tell out. Keeps what a line can only mean after the ones before it."""

    def __init__(self) -> None:
        self._list: dict[int, str] = {}
        """Server to what the bare numbers mean that it writes next."""
        self._torn_down: dict[int, set[int]] = {}
        """Server to the clients of its present fault that have been told of."""
        self.unknown = 0
        """Lines of a server that nobody knows. Those of the control daemon are not counted: they may hold anything."""

    def read(self, line: LogLine) -> Iterator[ServerSays]:
        """What ``line`` says; nothing for most."""
        if line.text.isascii() and line.text.isdigit() and line.pid in self._list:
            if self._list[line.pid] == _STICKY_LIST and len(line.text) < 10:
                yield ServerSays(STICKY, line.pid, int(line.text))
            return
        self._list.pop(line.pid, None)
        for pattern, meaning in _PATTERNS:
            # Exits are the control daemon's to tell, everything else is the server's.
            if line.control == (meaning == EXITED) and (found := pattern.match(line.text)):
                yield from self._meaning(meaning, line.pid, found.groupdict())
                return
        if not line.control and not _ROUTINE.match(line.text):
            self.unknown += 1

    def _meaning(self, meaning: str, server: int, words: dict[str, str | None]) -> Iterator[ServerSays]:
        client = int(words.get("client") or 0) or None
        if meaning in (_STICKY_LIST, _OTHER_LIST):
            self._list[server] = meaning
        elif meaning == BEGINS or (meaning == _UNDER_WAY and server not in self._torn_down):
            self._torn_down[server] = set()
            yield ServerSays(BEGINS, server)
        elif meaning == CULPRIT:
            yield ServerSays(CULPRIT, server, client)
        elif meaning == TEARDOWN and client is not None:
            # Up to three lines a client say the same.
            told = self._torn_down.setdefault(server, set())
            if client not in told:
                told.add(client)
                yield ServerSays(TEARDOWN, server, client)
        elif meaning == ENDS or (meaning == _NEW_CONTEXT and server in self._torn_down):
            # A first context is made without a fault; one is only destroyed after one (or at the server's end).
            self._torn_down.pop(server, None)
            yield ServerSays(ENDS, server)
        elif meaning == EXITED:
            exited = int(words["server"] or 0)
            self._torn_down.pop(exited, None)
            yield ServerSays(EXITED, exited)


class DaemonLogSensor:
    """Emits what one log tells, line by line as it is written. Owns one inotify descriptor.

    ``tail`` stands where reading is to begin. No process is named: a log has pids, and which process had one is known
    to whoever saw the clients come.
    """

    def __init__(self, emit: Callable[[Evidence], None], source: Source, path: Path, tail: Tail) -> None:
        self._emit, self._source, self._tail = emit, source, tail
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

    @property
    def unknown_lines(self) -> int:
        """Lines of servers that nobody knows: another driver may word things another way."""
        return self._reader.unknown

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
                self._reader.unknown += self._source is Source.SERVER_LOG and bool(text.strip())
                continue
            for number, says in enumerate(self._reader.read(line)):
                self._say(line, says, f"{self._source}:{line.pid}:{line.stamp}:{self._lines}.{number}")

    def _say(self, line: LogLine, says: ServerSays, serial: str) -> None:
        observed, now = time.monotonic(), time.time()
        happened = None if line.stamp is None else observed - (now - line.stamp)
        # A daemon with another TZ than ours, or a clock that was set meanwhile: the time of the line is no time then.
        if happened is not None and not -_PLAUSIBLE < happened - observed < _RESOLUTION:
            happened = None
        self._emit(
            Evidence(
                source=self._source,
                observed_at=observed,
                what=says,
                happened_at=None if happened is None else min(happened, observed),
                uncertainty=0.0 if happened is None else _RESOLUTION,
                # The client that the server says "encountered a fatal GPU error" was an innocent one in 24 of 27
                # faults where the UVM queue had proof (H200, 580.159.04).
                trust=Trust.NONE,
                serial=serial,
            )
        )
