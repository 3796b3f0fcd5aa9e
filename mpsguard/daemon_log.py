"""What the lines of server.log and control.log mean: the one place that knows the daemons' words.

The words are those of driver 580.159.04, taken from logs of real faults on an H200. The exit of a server, and the start
and the end of a fault, are worded the same by 535 and 550.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

_HEAD: Final = re.compile(
    r"\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) +(?P<who>Server|Legacy Server|Control|Other) +"
    r"(?P<pid>\d{1,9})\] ?(?P<text>.*)$",
    re.ASCII,
)
_CLIENT: Final = r"Client \{PID: (?P<client>\d{1,9}), Context(?: ID)?: \d+\}"

BEGINS: Final = "fault_begins"
ENDS: Final = "fault_ends"
CULPRIT: Final = "culprit"
TEARDOWN: Final = "teardown"
STICKY: Final = "sticky"
EXITED: Final = "server_exited"

STICKY_LIST: Final = "sticky list"
OTHER_LIST: Final = "other list"
UNDER_WAY: Final = "under way"
NEW_CONTEXT: Final = "new context"

_PATTERNS: Final = tuple(
    (re.compile(pattern, re.ASCII), meaning)
    for pattern, meaning in (
        (r"Server is handling a fatal GPU error", BEGINS),
        (_CLIENT + r" encountered a fatal GPU error", CULPRIT),
        (_CLIENT + r" on (?:device|the error-trigging process) \d+ to be torn down", TEARDOWN),
        # Not an accusation: for a fault of the SMs it says so of every client.
        (r"All clients belonging to error trigging process (?P<client>\d{1,9}) will be torn down", TEARDOWN),
        (r"The following client process(?:es)? have a sticky error set:", STICKY_LIST),
        (r"The following devices will be reset:", OTHER_LIST),
        (r"Server teardown in progress|Failed to accept client .* with status 807", UNDER_WAY),
        (r"Destroy server context on device", ENDS),
        (r"Creating server context on device", NEW_CONTEXT),
        (r"Server (?P<server>\d{1,9}) exited with status", EXITED),
    )
)


class LogLine(msgspec.Struct, frozen=True):
    """One line of a daemon's log."""

    stamp: float | None
    """UNIX seconds; the log has local time, without a zone."""
    control: bool
    """Written by the control daemon, which also writes down what it is asked and what it answers."""
    pid: int
    text: str


class Meaning(msgspec.Struct, frozen=True):
    """What a line says: one of the words above, and the numbers in it."""

    what: str
    numbers: Mapping[str, int]
    """``client`` and ``server``, if the line names them."""


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


def meaning(line: LogLine) -> Meaning | None:
    """What a line says; None for one that says nothing of a fault."""
    for pattern, what in _PATTERNS:
        # Exits are the control daemon's to tell, everything else is the server's.
        if line.control == (what == EXITED) and (found := pattern.match(line.text)):
            return Meaning(what, {name: int(number) for name, number in found.groupdict().items() if number})
    return None
