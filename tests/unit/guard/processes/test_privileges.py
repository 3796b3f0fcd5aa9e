"""What the guard gives up, in a child process that gives it up."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpsguard.guard.processes import privileges
from mpsguard.guard.processes.privileges import DENIED
from mpsguard.linux.processes import privileges as linux_privileges
from mpsguard.linux.processes.privileges import filter_library
from tests.harness.tree import ROOT

CHILD = """
import ctypes, json, os, sys, threading
from pathlib import Path
from mpsguard.linux.processes import privileges as linux_privileges
from mpsguard.linux.processes.privileges import filter_library
from mpsguard.guard.processes import privileges

mode = sys.argv[1]
library = filter_library()
release = threading.Event()
if mode == "threads":
    threading.Thread(target=release.wait).start()
given = privileges.give_up() if mode != "nothing" else None
release.set()
libc = ctypes.CDLL(None, use_errno=True)

def answer(name):
    # Arguments that no call accepts: what is not filtered fails with another error, or does nothing.
    number = library.seccomp_syscall_resolve_name(name.encode())
    if number < 0:
        return None
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.syscall(number, -1, -1, -1, -1, -1, -1) < 0 else 0

status = dict(line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
after_exec = os.popen("cat /proc/self/status").read()
print(json.dumps({
    "less": list(given.less) if given else [],
    "status": {name: value.strip() for name, value in status.items()},
    "after_exec": dict(line.split(":\\t", 1) for line in after_exec.splitlines()),
    "answers": {name: answer(name) for name in json.loads(sys.argv[2])},
}))
"""

KEPT = sum(1 << capability for capability in privileges.KEPT)
EPERM = 1

needs_libseccomp = pytest.mark.skipif(filter_library() is None, reason="libseccomp.so.2 is not installed")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to give up")


def child(mode: str, calls: tuple[str, ...] = (), within: tuple[str, ...] = ()) -> Any:
    done = subprocess.run(
        [*within, sys.executable, "-c", CHILD, mode, json.dumps(calls)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
    )
    return json.loads(done.stdout)


@pytest.mark.root
@needs_root
def test_capabilities_are_gone_for_good_and_for_children() -> None:
    found = child("all")
    assert found["less"] == []
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert int(found["status"][name], 16) & ~KEPT == 0
        assert int(found["after_exec"][name], 16) & ~KEPT == 0
    assert int(found["status"]["CapAmb"], 16) == 0
    assert found["status"]["NoNewPrivs"] == "1"


@pytest.mark.root
@needs_root
def test_a_bounding_set_that_cannot_be_changed_is_of_no_use_to_children() -> None:
    unit = ("setpriv", "--bounding-set", "-setpcap")
    found, before = child("all", within=unit), child("nothing", within=unit)
    assert found["less"] == []
    assert found["status"]["CapBnd"] == before["status"]["CapBnd"] == before["status"]["CapEff"]
    for status in (found["status"], found["after_exec"]):
        assert int(status["CapPrm"], 16) & ~KEPT == int(status["CapEff"], 16) & ~KEPT == 0


@needs_libseccomp
def test_every_denied_call_fails_and_fails_for_this_reason() -> None:
    # Calls that change nothing even where root may make them with these arguments.
    harmless = ("finit_module", "mount", "setns", "unshare", "bpf", "perf_event_open", "ptrace", "io_uring_setup")
    before = child("nothing", harmless)
    assert EPERM not in [before["answers"][name] for name in ("setns", "unshare", "ptrace", "io_uring_setup")]
    after = child("all", tuple(name for group in DENIED.values() for name in group))
    known = {name: answer for name, answer in after["answers"].items() if answer is not None}
    assert set(harmless) <= set(known)
    assert {name: answer for name, answer in known.items() if answer != EPERM} == {}
    assert after["status"]["Seccomp"] == after["after_exec"]["Seccomp"].strip() == "2"


def test_more_than_one_thread_is_said_and_leaves_capabilities_alone() -> None:
    found = child("threads")
    assert any("thread" in reason for reason in found["less"])
    assert found["status"]["CapEff"] == child("nothing")["status"]["CapEff"]


def test_without_the_library_the_rest_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux_privileges, "filter_library", lambda: None)
    # In a child: what is given up cannot be had back.
    pid = os.fork()
    if pid == 0:
        given = privileges.give_up()
        os._exit(0 if not given.filter and len(given.less) >= 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_no_two_groups_deny_the_same_call() -> None:
    calls = [name for group in DENIED.values() for name in group]
    assert len(calls) == len(set(calls))


@pytest.mark.parametrize(
    ("gpus", "nodes", "ready"),
    [
        (0, ("nvidiactl",), False),
        (1, (), False),
        (1, ("nvidiactl",), False),
        (2, ("nvidiactl", "nvidia0"), False),
        (2, ("nvidiactl", "nvidia0", "nvidia1", "nvidia-uvm"), True),
        (2, ("nvidia0", "nvidia1"), False),
    ],
)
def test_when_the_driver_is_ready(tmp_path: Path, gpus: int, nodes: tuple[str, ...], ready: bool) -> None:
    (tmp_path / "dev").mkdir()
    for index in range(gpus):
        (tmp_path / "proc/driver/nvidia/gpus" / f"0000:{index:02}:00.0").mkdir(parents=True)
    for node in nodes:
        (tmp_path / "dev" / node).touch()
    assert privileges.driver_is_ready(tmp_path) == ready
