"""Parser for lines of server.log and control.log: the only place that knows the daemons' wording.

The wording is that of driver 580.159.04, from logs of real faults on an H200. Drivers 535 and 550 use the same wording
for the exit of a server, and the start and the end of a fault. Drivers before 535 write "Volta MPS: " before it, and
clients as ``{4301, 1}``; a client in a pid namespace that the server cannot see is 1073741824 (2 ** 30), which is no
process.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from mpsguard.linux.identity import PID_LIMIT

_HEAD: Final = re.compile(
    r"\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) +(?P<who>Server|Legacy Server|Control|Other) +"
    r"(?P<pid>\d{1,9})\] ?(?P<text>.*)$",
    re.ASCII,
)
_CLIENT: Final = r"Client \{(?:PID: )?(?P<client>\d{1,10}), (?:Context(?: ID)?: )?\d+\}"
_OF_OLD: Final = r"(?:Volta MPS(?: Server)?: )?"

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
    (re.compile(_OF_OLD + pattern, re.ASCII), meaning)
    for pattern, meaning in (
        (r"Server is handling a fatal GPU error", BEGINS),
        (_CLIENT + r" encountered a fatal GPU error", CULPRIT),
        (_CLIENT + r" on (?:device|the error-trigging process) \d+ to be torn down", TEARDOWN),
        # Not an accusation: for a fault of the SMs it says so of every client.
        (r"All clients belonging to error trigging process (?P<client>\d{1,10}) will be torn down", TEARDOWN),
        (r"The following client(?: process(?:es)?|s) have a sticky error set:", STICKY_LIST),
        (r"The following devices\b", OTHER_LIST),
        (r"(?:Server teardown in progress|Failed to accept client .* with status 807)", UNDER_WAY),
        (r"Destroy server context on device", ENDS),
        (r"Creating server context on device", NEW_CONTEXT),
        (r"Server (?P<server>\d{1,9}) exited with status(?: (?P<status>\d{1,3})$)?", EXITED),
    )
)


class LogLine(msgspec.Struct, frozen=True):
    """One line of a daemon's log."""

    stamp: float | None
    """UNIX seconds; the log has local time, without a zone."""
    control: bool
    """Whether the control daemon wrote it, which also logs its commands and answers."""
    pid: int
    text: str


class Meaning(msgspec.Struct, frozen=True):
    """The meaning of a line: one of the constants above, and the numbers in the line."""

    what: str
    numbers: Mapping[str, int]
    """``client``, ``server`` and ``status``, if the line names them; a client only if it can be a process."""


def parse_line(line: str) -> LogLine | None:
    """Return a line of the daemons' format; None for any other."""
    found = _HEAD.match(line)
    if found is None:
        return None
    try:
        stamp = datetime.fromisoformat(found["stamp"]).timestamp()
    except (ValueError, OverflowError, OSError):
        stamp = None
    return LogLine(stamp, found["who"] == "Control", int(found["pid"]), found["text"])


def meaning(line: LogLine) -> Meaning | None:
    """Return the meaning of a line; None if it is not about a fault."""
    for pattern, what in _PATTERNS:
        # The control daemon logs exits; the server logs everything else.
        if line.control == (what == EXITED) and (found := pattern.match(line.text)):
            named = {name: int(number) for name, number in found.groupdict().items() if number}
            return Meaning(what, {name: pid for name, pid in named.items() if name == "server" or pid < PID_LIMIT})
    return None


def server_end(line: LogLine) -> tuple[int, int] | None:
    """Return the pid of a server that ended, and its status, if a line says so; a signal is 0 there, too (550.163)."""
    found = meaning(line)
    return None if found is None or found.what != EXITED else (found.numbers["server"], found.numbers.get("status", 0))
