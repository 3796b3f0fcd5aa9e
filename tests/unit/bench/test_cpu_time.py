"""CPU time by the kernel's accounts: what was run counts, for every thread, and what slept does not."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.bench.core import cpu_time
from tests.bench.core.cpu_time import Usage, share, usage

BURNS = """
import sys, time
sys.stdin.readline()
while time.thread_time() < 0.3: pass
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("schedstat", [True, False])
def test_what_a_process_runs_is_counted(schedstat: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not schedstat:
        read = Path.read_text

        def without(path: Path) -> str:
            if path.name == "schedstat":
                raise FileNotFoundError(path)
            return read(path)

        monkeypatch.setattr(Path, "read_text", without)
    with subprocess.Popen([sys.executable, "-c", BURNS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = usage(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        after = usage(process.pid)
        used = after.seconds[process.pid] - before.seconds[process.pid]
        process.stdin.close()
    assert used > 0.1


def test_a_share_is_of_the_time_between() -> None:
    found = share(7, Usage(10.0, {7: 1.0, 8: 2.0}), Usage(14.0, {7: 1.02, 8: 2.0, 9: 0.01}))
    assert found.main == pytest.approx(0.5)
    assert found.others == pytest.approx(0.25)
    assert found.total == pytest.approx(0.75)


def test_a_thread_that_sleeps_costs_nothing() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, daemon=True)
    thread.start()
    before = usage(os.getpid())
    began = time.thread_time()
    while time.thread_time() - began < 0.1:
        pass
    after = usage(os.getpid())
    assert thread.native_id is not None
    slept = after.seconds[thread.native_id] - before.seconds[thread.native_id]
    assert slept < after.seconds[os.getpid()] - before.seconds[os.getpid()]
    assert share(os.getpid(), before, after).main > 0
    end.set()
    thread.join()


def test_a_process_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        cpu_time.usage(2**22 + 1)
