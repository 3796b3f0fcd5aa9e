"""server.log and control.log: any user with a program that has the file open may write to it."""

import os
from pathlib import Path
from random import Random
from typing import Final

from fault_injection.fuzzing import stored
from fault_injection.fuzzing.mutation import changed_text, index
from fault_injection.fuzzing.surface import BrokenPromiseError, Surface
from mpsguard.guard.daemon_log import parse_line
from mpsguard.guard.evidence import Evidence, Source, Trust
from mpsguard.guard.lanes import server_watch
from mpsguard.guard.sensors.daemon_logs import LogReader
from mpsguard.linux.files.log_tail import LogTail

_HEAD: Final = b"[2026-11-20 14:01:28.554 "
_LINES: Final = tuple(
    _HEAD + line + b"\n"
    for line in (
        b"Server   479] Creating worker thread for client {PID: 755, Context ID: 0}",
        b"Server   479] Server is handling a fatal GPU error.",
        b"Server   479] Client {PID: 697, Context ID: 1} on device 0 to be torn down",
        b"Server   479] All clients belonging to error trigging process 697 will be torn down",
        b"Server   479] Client {PID: 697, Context ID: 1} encountered a fatal GPU error",
        b"Server   479] The following devices will be reset:",
        b"Server   479] 0",
        b"Server   479] The following client process have a sticky error set:",
        b"Server   479] 697",
        b"Server   480] Server teardown in progress. Refusing to accept new client {PID: 755, Context ID: 1}",
        b"Server   479] Failed to accept client {PID: 755, Context ID: 1} with status 807",
        b"Server   479] Destroy server context on device 0 (NVIDIA H200)",
        b"Server   479] Creating server context on device 0 (NVIDIA H200)",
        b"Control   462] Server 479 exited with status 0",
        b"Control   462] User did not send valid credentials",
    )
)
_MOST_LINES: Final = 6


class DaemonLogs(Surface[bytes]):
    """From the file to what its lines say."""

    name = "daemon logs"
    share = 100

    def __init__(self) -> None:
        self._file = os.memfd_create("server.log", os.MFD_CLOEXEC)
        self._path = Path(f"/proc/self/fd/{self._file}")

    def make(self, chance: Random) -> bytes:
        """A few lines, some of them changed."""
        lines = [_LINES[index(chance, len(_LINES))] for _ in range(1 + index(chance, _MOST_LINES))]
        return b"".join(changed_text(chance, line, _LINES) if chance.random() < 0.5 else line for line in lines)

    def feed(self, case: bytes) -> None:
        """Append it in two pieces to a log that is being followed."""
        os.ftruncate(self._file, 0)
        tail, reader = LogTail(self._path), LogReader()
        half = len(case) // 2
        evidence = []
        for at, piece in ((0, case[:half]), (half, case[half:] + b"\n")):
            os.pwrite(self._file, piece, at)
            for text in tail.read():
                if "\n" in text:
                    raise BrokenPromiseError(f"two lines in one: {text!r}")
                server_watch.hint(text)
                line = parse_line(text)
                if line is not None:
                    evidence += [
                        Evidence(source=Source.SERVER_LOG, observed_at=1.0, what=says, trust=Trust.NONE, serial="1")
                        for says in reader.read(line)
                    ]
        stored.check(evidence, judge=len(case) % 16 == 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
