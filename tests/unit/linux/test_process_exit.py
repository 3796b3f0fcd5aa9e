"""How strangers end: real processes, each way of ending, each mechanism, reaped or not."""

import ctypes
import errno
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mpsguard.linux.processes import process_events, process_exit
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.process_exit import UNKNOWN, ExitStatus, ExitWatch, Mechanism
from tests.unit.linux.doomed import Doomed, open_files

_SYS_EXIT = {"x86_64": 60, "aarch64": 93}.get(os.uname().machine)


@pytest.fixture(params=list(Mechanism))
def watch(request: pytest.FixtureRequest) -> Iterator[ExitWatch]:
    if request.param is Mechanism.PIDFD and not process_exit.pidfd_tells():
        pytest.skip("this kernel's pidfds do not tell how a process ended (Linux 6.15)")
    before = open_files()
    try:
        opened = ExitWatch(request.param)
    except OSError as error:
        pytest.skip(f"process events: {error}")
    yield opened
    opened.close()
    opened.close()
    assert open_files() == before


def raise_signal(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def dump_core() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    raise_signal(signal.SIGSEGV)


def no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    raise_signal(signal.SIGSEGV)


def handle_sigterm() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
    os.kill(os.getpid(), signal.SIGTERM)


WAYS = [
    pytest.param(lambda: os._exit(0), ExitStatus(exit_code=0), id="exit 0"),
    pytest.param(lambda: os._exit(1), ExitStatus(exit_code=1), id="exit 1"),
    pytest.param(lambda: os._exit(255), ExitStatus(exit_code=255), id="exit 255"),
    pytest.param(lambda: os.kill(os.getpid(), signal.SIGKILL), ExitStatus(signal=9), id="SIGKILL"),
    pytest.param(lambda: raise_signal(signal.SIGTERM), ExitStatus(signal=15), id="SIGTERM"),
    pytest.param(handle_sigterm, ExitStatus(exit_code=3), id="SIGTERM handled"),
    pytest.param(no_core, ExitStatus(signal=11), id="SIGSEGV without core"),
    pytest.param(lambda: os.kill(os.getpid(), signal.SIGRTMAX), ExitStatus(signal=64), id="SIGRTMAX"),
]


@pytest.mark.parametrize(("how", "expected"), WAYS)
def test_a_zombie_and_a_reaped_process_tell_the_same(
    watch: ExitWatch, how: Callable[[], object], expected: ExitStatus
) -> None:
    for reaped in (False, True):
        doomed = Doomed(how)
        with doomed.handle as handle:
            watch.watch(handle)
            assert watch.exit_status(handle) == UNKNOWN
            doomed.end()
            if reaped:
                doomed.reap()
            told = watch.exit_status(handle)
            if not reaped:
                doomed.reap()
        assert told == (UNKNOWN if reaped and watch.mechanism is Mechanism.ZOMBIES else expected)


def test_a_core_dump_is_reported(watch: ExitWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    doomed = Doomed(dump_core)
    with doomed.handle as handle:
        watch.watch(handle)
        doomed.end()
        told = watch.exit_status(handle)
        dumped = os.WCOREDUMP(doomed.reap())
    assert told == ExitStatus(signal=signal.SIGSEGV, core_dumped=dumped)


GRANDCHILD = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN if sys.argv[1] == "ignored" else signal.SIG_DFL)
may_read, may_write = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(may_write)
    os.read(may_read, 1)
    os._exit(42)
os.close(may_read)
print(pid, flush=True)
sys.stdin.readline()
os.close(may_write)
if sys.argv[1] == "waited":
    os.waitpid(pid, 0)
sys.stdin.readline()
"""


@pytest.mark.parametrize("parent", ["waited", "ignored", "careless"])
def test_another_process_s_child_is_reported_as_its_pidfd_says_so(
    watch: ExitWatch, parent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the parent waits, lets the kernel reap, or leaves a zombie: asked as soon as the pidfd speaks."""
    # The child sends its event once it has woken us, and a busy machine may have it wait for a processor in between.
    monkeypatch.setattr(process_events, "_EVENT_WITHIN", 10.0)
    told = []
    for _ in range(20):
        other = subprocess.Popen(
            [sys.executable, "-c", GRANDCHILD, parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert other.stdin is not None
        assert other.stdout is not None
        with ProcessHandle.open(int(other.stdout.readline())) as handle:
            watch.watch(handle)
            other.stdin.write("\n")
            other.stdin.flush()
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            assert ended.poll(10_000)
            told.append(watch.exit_status(handle))
        other.communicate("\n")
    if watch.mechanism is Mechanism.ZOMBIES and parent != "careless":
        assert set(told) <= {UNKNOWN, ExitStatus(exit_code=42)}
    else:
        assert set(told) == {ExitStatus(exit_code=42)}


MAIN_THREAD_FIRST = """
import ctypes, os, sys, threading
def outlive():
    while open("/proc/self/stat").read().rsplit(")", 1)[1].split()[0] != "Z":
        os.sched_yield()
    os._exit(3)
threading.Thread(target=outlive).start()
ctypes.CDLL(None).syscall(int(sys.argv[1]), 0)
"""


@pytest.mark.skipif(_SYS_EXIT is None, reason="the number of exit(2) is not known for this machine")
@pytest.mark.parametrize("reaped", [False, True])
def test_a_main_thread_that_ended_first_is_not_the_process(watch: ExitWatch, reaped: bool) -> None:
    if reaped and watch.mechanism is not Mechanism.PIDFD:
        pytest.skip("known limit of this mechanism")
    child = subprocess.Popen([sys.executable, "-c", MAIN_THREAD_FIRST, str(_SYS_EXIT)])
    with ProcessHandle.open(child.pid) as handle:
        watch.watch(handle)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        if reaped:
            child.wait()
        assert watch.exit_status(handle) == ExitStatus(exit_code=3)
    child.wait()


def test_a_successor_of_the_pid_is_not_confused_with_it(watch: ExitWatch) -> None:
    """Under one pid: one process that ends by a signal, and one that exits, each asked by its own handle."""
    last_pid = Path("/proc/sys/kernel/ns_last_pid")
    try:
        last_pid.write_text(last_pid.read_text())
    except OSError as error:
        pytest.skip(f"pids cannot be chosen here: {error}")
    first = Doomed(lambda: os.kill(os.getpid(), signal.SIGKILL))
    watch.watch(first.handle)
    first.end()
    first.reap()
    second = None
    for _ in range(50):
        last_pid.write_text(str(first.pid - 1))
        second = Doomed(lambda: os._exit(5))
        if second.pid == first.pid:
            break
        second.end()
        second.reap()
        second.handle.close()
    else:
        first.handle.close()
        pytest.skip("the pid was not given out again")
    assert second is not None
    # Born within the same clock tick they even share their start time: only the pidfd tells them apart.
    told_late = watch.exit_status(first.handle)
    watch.watch(second.handle)
    second.end()
    told_zombie = watch.exit_status(second.handle)
    told_again = watch.exit_status(first.handle)
    second.reap()
    assert told_zombie == ExitStatus(exit_code=5)
    assert told_late == (UNKNOWN if watch.mechanism is Mechanism.ZOMBIES else ExitStatus(signal=9))
    # The events are told once; the pidfd tells as long as it is open.
    assert told_again == (ExitStatus(signal=9) if watch.mechanism is Mechanism.PIDFD else UNKNOWN)
    first.handle.close()
    second.handle.close()


def test_only_a_zombie_tells_by_its_number() -> None:
    doomed = Doomed(lambda: os._exit(9))
    with doomed.handle as handle:
        assert process_exit._of_zombie(handle) is None
        doomed.end()
        assert process_exit._of_zombie(handle) == 9 << 8
        doomed.reap()
        assert process_exit._of_zombie(handle) is None


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_a_caller_that_may_not_look_does_not_get_zero() -> None:
    """/proc shows a stranger exit code 0 of every zombie: that is no knowledge."""
    doomed = Doomed(lambda: os._exit(9))
    doomed.end()

    def look() -> None:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        os._exit(1 if process_exit._of_zombie(doomed.handle) is None else 2)

    stranger = Doomed(look)
    stranger.end()
    assert os.waitstatus_to_exitcode(stranger.reap()) == 1
    doomed.reap()
    doomed.handle.close()
    stranger.handle.close()


def test_the_best_mechanism_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_exit, "pidfd_tells", lambda: True)
    with_pidfd = ExitWatch.open()
    assert (with_pidfd.mechanism, with_pidfd.detail) == (Mechanism.PIDFD, "by pidfd")

    def refuse() -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(process_exit, "pidfd_tells", lambda: False)
    monkeypatch.setattr(process_exit, "ProcessEvents", refuse)
    with_nothing = ExitWatch.open()
    assert with_nothing.mechanism is Mechanism.ZOMBIES
    assert "Operation not permitted" in with_nothing.detail


def test_a_kernel_that_cannot_tell_of_threads_cannot_tell_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def invalid(pid: int, flags: int) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    before = open_files()
    monkeypatch.setattr(os, "pidfd_open", invalid)
    assert not process_exit.pidfd_tells()
    assert open_files() == before


def test_a_descriptor_that_tells_nothing_is_unknown() -> None:
    with open(os.devnull, "rb") as file:
        assert process_exit._of_reaped(file.fileno()) is None


def test_the_layouts_are_the_kernel_s() -> None:
    class PidfdInfo(ctypes.Structure):
        _fields_ = (
            ("mask", ctypes.c_uint64),
            ("cgroup", ctypes.c_uint64),
            ("ids", ctypes.c_uint32 * 11),
            ("exit_code", ctypes.c_int32),
        )

    assert ctypes.sizeof(PidfdInfo) == process_exit._PIDFD_INFO.size == 64
    assert process_exit._PIDFD_GET_INFO == 0xC040FF0B
