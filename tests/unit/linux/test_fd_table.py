"""The table of descriptors: what the kernel says of its size."""

import re
import resource
import subprocess
import sys
from pathlib import Path

from tests.harness.guard_process import REPOSITORY

_PREPARE = """
import os
from mpsguard.linux.descriptors import fd_table
before = os.listdir("/proc/self/fd")
fd_table.prepare_for_many()
assert os.listdir("/proc/self/fd") == before
print(open("/proc/self/status").read())
"""


def slots(status: str) -> int:
    """How many descriptors fit without a larger table, by a process' status file."""
    found = re.search(r"^FDSize:\s*(\d+)$", status, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_there_is_room_for_as_many_as_the_limit_allows() -> None:
    limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65536)
    assert slots(Path("/proc/self/status").read_text()) < limit, "else this shows nothing"
    done = subprocess.run(
        [sys.executable, "-c", _PREPARE], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert slots(done.stdout) >= limit
