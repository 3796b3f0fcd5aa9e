"""The table of descriptors: what the kernel says of its size."""

import re
import resource
import subprocess
import sys

from tests.harness.guard_process import REPOSITORY

_PREPARE = """
import os
from mpsguard.linux.descriptors import fd_table
print(open("/proc/self/status").read())
before = os.listdir("/proc/self/fd")
fd_table.prepare_for_many()
assert os.listdir("/proc/self/fd") == before
print(open("/proc/self/status").read())
"""


def test_there_is_room_for_as_many_as_the_limit_allows() -> None:
    limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65536)
    done = subprocess.run(
        [sys.executable, "-c", _PREPARE], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    # Of a process of its own: an earlier test may have enlarged this one's table, which never gets smaller.
    before, after = map(int, re.findall(r"^FDSize:\s*(\d+)$", done.stdout, re.MULTILINE))
    assert before < limit <= after, "the second one shows nothing without the first one"
