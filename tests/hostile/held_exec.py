"""Processes with an execve(2) that does not end, as a user can make them with FUSE; without a guard."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hostile.stalled_files import StalledFiles

_EXECUTE = """
import os, sys
user = int(sys.argv[2])
os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
# Its close does not return, and execve(2) closes it.
file = os.open(sys.argv[1], os.O_RDONLY)
for name in sys.argv[3:]:
    os.open(name, os.O_RDWR | os.O_CREAT)
os.execv("/bin/sleep", ["sleep", "600"])
"""


@contextmanager
def held_exec(users: list[int], *opens: Path) -> Iterator[list[int]]:
    """A process of each user in ``users`` that is about to execute another program; yields their pids.

    Each opens the files ``opens`` right before.
    """
    directory = Path(tempfile.mkdtemp(prefix="mg-"))
    directory.chmod(0o755)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with StalledFiles(directory, flushes=False) as stalled:
            for user in users:
                processes.append(
                    subprocess.Popen([sys.executable, "-c", _EXECUTE, str(stalled.file), str(user), *map(str, opens)])
                )
                assert stalled.closing.acquire(timeout=30)
            yield [process.pid for process in processes]
            for process in processes:
                process.kill()
    finally:
        for process in processes:
            process.kill()
            process.wait(30)
        directory.rmdir()
