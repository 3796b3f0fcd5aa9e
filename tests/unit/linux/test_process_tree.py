"""The descendants of a process, as /proc tells of real ones."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import process_tree, procfs

# Each says its own pid, and waits; the one in the middle is started by a thread that is not the main one.
LEAF = "import os, sys; os.write(1, b'%d ' % os.getpid()); sys.stdin.read()"
MIDDLE = f"""
import os, subprocess, sys, threading
thread = threading.Thread(target=lambda: subprocess.run([sys.executable, "-c", {LEAF!r}]))
thread.start()
os.write(1, b'%d ' % os.getpid())
thread.join()
"""


@contextmanager
def family(code: str, members: int) -> Iterator[tuple[int, set[int]]]:
    """A process that is stopped, and the pids of all that are."""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = b""
    while len(said.split()) < members:
        said += os.read(process.stdout.fileno(), 100)
    pids = {int(word) for word in said.split()}
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield process.pid, pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        process.communicate(timeout=30)


@pytest.mark.parametrize("look", [process_tree.descendants, process_tree.descendants_at_rest])
def test_all_below_are_found_whichever_thread_started_them(look: Callable[[int], list[ProcessKey]]) -> None:
    with family(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {MIDDLE!r}])", 2) as (root, pids):
        assert sorted(look(root)) == sorted(procfs.process_key(pid) for pid in pids)


def test_a_process_that_has_ended_has_no_descendants() -> None:
    with family(LEAF, 1) as (root, _):
        assert process_tree.descendants_at_rest(root) == []
    assert process_tree.descendants_at_rest(root) == []


NAMED = """
import ctypes, sys
PR_SET_NAME = 15
ctypes.CDLL(None).prctl(PR_SET_NAME, sys.argv[1].encode("latin-1"), 0, 0, 0)
sys.stdout.write("named\\n")
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.mark.parametrize("separator", ["\x1c", "\r", "\x0b", "\x0c"])
def test_what_a_process_calls_itself_is_not_its_pid_or_its_user(separator: str) -> None:
    """Its name is the first line of its status; the kernel escapes nothing but newlines in it."""
    for field in ("NSpid: 1", "Uid: 12345"):
        with subprocess.Popen(
            [sys.executable, "-c", NAMED, separator + field], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"named\n"
            assert process_tree.innermost_pid(process.pid) == process.pid
            assert procfs.uid(process.pid) == (os.getuid(), os.getgid())
            process.kill()
