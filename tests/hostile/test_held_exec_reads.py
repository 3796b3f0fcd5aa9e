"""What reads of other processes do while one of these does not end its execve(2)."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import peer_user, process_tree, procfs
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.process_reader import ProcessReader
from mpsguard.linux.processes.reserved_ranges import reserved_ranges
from mpsguard.linux.processes.stat_reader import DEADLINE, PATIENCE, StatReader
from tests.harness.waiting import wait_for
from tests.hostile.held_exec import held_exec

pytestmark = [
    pytest.mark.slow(seconds=20, reason="waits for deadlines"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system"),
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE here"),
]

SLACK = 5.0
"""Seconds; if users had no turns of their own, the deadlines of eighteen held reads would add up."""

PROMPT = ["status", "cgroup", "comm", "cmdline", "limits", "fdinfo", "fdinfo/0", "fd", "task", "signal"]
WAITING = [
    *("stat", "io", "auxv", "environ", "maps", "mem", "smaps", "stack", "wchan", "syscall"),
    *("cwd", "exe", "root", "fd/0", "ns", "map_files", "pidfd_getfd", "kcmp"),
]
LOOK = """
import ctypes, os, signal, sys
pid, libc = int(sys.argv[1]), ctypes.CDLL(None)
for name in sys.argv[2:]:
    path = f"/proc/{pid}/{name}"
    if name == "signal":
        signal.pidfd_send_signal(os.pidfd_open(pid), 0)
    elif name == "pidfd_getfd":
        libc.syscall(438, os.pidfd_open(pid), 0, 0)
    elif name == "kcmp":
        libc.syscall({"x86_64": 312, "aarch64": 272}[os.uname().machine], pid, os.getpid(), 0, 0, 0)
    elif os.path.islink(path):
        os.readlink(path)
    elif os.path.isdir(path):
        os.listdir(path) and name == "ns" and os.readlink(path + "/pid")
    else:
        os.read(os.open(path, os.O_RDONLY), 100)
"""
"""Looks at each of these of a process, one after the other."""


def test_only_callers_of_that_process_wait_and_other_users_have_their_turn() -> None:
    users = [60000 + number // 3 for number in range(18)]

    async def scenario(pids: list[int]) -> None:
        stats = StatReader()
        stats.start()
        try:
            asked = [asyncio.create_task(stats.hold(pid, uid)) for pid, uid in zip(pids, users, strict=True)]
            own = procfs.process_key(os.getpid())
            for _ in range(30):
                began = time.monotonic()
                assert await stats.key(os.getpid()) == own
                # All children may have to be killed for others first, and new ones started.
                assert time.monotonic() - began < SLACK
            began = time.monotonic()
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {TimeoutError}
            assert time.monotonic() - began < DEADLINE + PATIENCE + SLACK
            # One that does not answer keeps none of the others that were asked for with it from being read.
            lines = await stats.stats([os.getpid(), pids[0], 1], 60000)
            assert [line is None for line in lines] == [False, True, False]
            assert await stats.pid_namespaces([(ProcessKey(pids[0], 1), 60000), (own, 0)]) == {
                own: process_tree.pid_namespace()
            }
        finally:
            stats.close()

    with held_exec(users) as pids:
        asyncio.run(asyncio.wait_for(scenario(pids), 60))


def test_what_the_event_loop_reads_itself_does_not_wait() -> None:
    """A wait here ends with the test's own deadline."""
    with held_exec([60000]) as (pid,):
        handle = ProcessHandle.of_living(os.pidfd_open(pid), ProcessKey(pid, 1))
        with handle, handle.copy() as copy:
            assert copy.alive()
            assert not copy.stopped()
        assert procfs.state(pid) is not None
        assert procfs.uid(pid) == (60000, 60000)
        assert process_tree.innermost_pid(pid) == pid
        assert Path(f"/proc/{pid}/cgroup").read_bytes()


def states(processes: Mapping[str, subprocess.Popen[bytes]]) -> list[str | None]:
    return [procfs.state(process.pid) for process in processes.values()]


@pytest.mark.skipif(not os.uname().release.startswith("6.18."), reason="said of Linux 6.18")
def test_which_looks_wait_and_which_do_not() -> None:
    with held_exec([60000, 0]) as (pid, root), ExitStack() as closing:
        assert peer_user.user_of(root, 0) == 0
        look = [sys.executable, "-c", LOOK, str(pid)]
        subprocess.run([*look, *PROMPT], check=True, timeout=90)
        begun: dict[str, subprocess.Popen[bytes]] = {}
        for name in WAITING:
            begun[name] = closing.enter_context(subprocess.Popen([*look, name]))
            closing.callback(begun[name].kill)
        wait_for("that all wait or have ended", lambda: set(states(begun)) <= {"D", "Z"})
        assert [name for name, looking in begun.items() if looking.poll() is not None] == []


def test_the_descendants_of_a_program_are_found_beside_a_stranger() -> None:
    program = "import subprocess; subprocess.run(['sleep', '600'])"
    with held_exec([60000]), subprocess.Popen([sys.executable, "-c", program], process_group=0) as root:
        try:
            wait_for("its child", lambda: process_tree.descendants_at_rest(root.pid))
            assert process_tree.descendants(root.pid) == process_tree.descendants_at_rest(root.pid)
        finally:
            os.killpg(root.pid, signal.SIGKILL)


def test_memory_maps_are_unknown_after_the_deadline() -> None:
    reader = ProcessReader(0.5)
    try:
        with held_exec([60000]) as (pid,), pytest.raises(ProcessLookupError):
            reserved_ranges(ProcessKey(pid, 1), reader)
    finally:
        reader.close()
