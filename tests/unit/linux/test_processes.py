"""Processes and locks: identities that survive pid reuse, and the kernel's word on which process holds what."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mpsguard.linux.files import file_lock
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.files.file_lock import FileLock, LockHeldError
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.process import ProcessHandle
from tests.harness.open_descriptors import open_descriptors, opened_since


def sleeper(name: str = "sleep") -> subprocess.Popen[bytes]:
    return subprocess.Popen([name, "600"], executable="/bin/sleep")


def test_a_handle_is_of_one_process_and_no_other() -> None:
    child = sleeper()
    with ProcessHandle.open(child.pid) as handle:
        assert handle.key == procfs.process_key(child.pid)
        assert handle.alive()
        handle.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert handle.stopped()
        handle.signal(signal.SIGKILL)
        child.wait()
        assert not handle.alive()
        assert not handle.stopped()
        with pytest.raises(ProcessLookupError):
            handle.signal(signal.SIGKILL)


def test_holding_a_process_with_a_reused_pid_is_refused() -> None:
    child = sleeper()
    key = procfs.process_key(child.pid)
    try:
        with ProcessHandle.hold(key) as handle:
            assert handle.key == key
        open_before = open_descriptors()
        with pytest.raises(ProcessLookupError):
            ProcessHandle.hold(ProcessKey(child.pid, key.start_ticks - 1))
        assert opened_since(open_before) == []
    finally:
        child.kill()
        child.wait()
    with pytest.raises(ProcessLookupError):
        ProcessHandle.hold(key)


def test_a_zombie_is_dead() -> None:
    child = sleeper()
    with ProcessHandle.open(child.pid) as handle:
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not handle.alive()
        assert procfs.state(child.pid) == "Z"
        with pytest.raises(ProcessLookupError):
            ProcessHandle.open(child.pid)
    child.wait()


def test_a_command_line_cannot_speak_to_the_terminal() -> None:
    child = sleeper("evil\x1b[2J\n) 1 1\t" + "x" * 1000)
    try:
        shown = procfs.command(child.pid)
        assert shown.isprintable()
        assert len(shown) <= procfs.MAX_COMMAND
        assert procfs.process_key(child.pid).start_ticks > 0
    finally:
        child.kill()
        child.wait()


def test_a_process_that_is_not_there_reads_as_nothing() -> None:
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    assert procfs.command(gone.pid) == ""
    assert procfs.environment(gone.pid) == {}
    with pytest.raises(ProcessLookupError):
        procfs.process_key(gone.pid)
    with pytest.raises(ProcessLookupError):
        procfs.uid(gone.pid)


def test_the_environment_is_the_one_at_the_start() -> None:
    child = subprocess.Popen(
        ["/bin/cat"], env={"CUDA_VISIBLE_DEVICES": "0,1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        # The kernel publishes the environment late in execve: an echo proves that the program runs.
        child.stdin.write(b"up")
        assert child.stdout.read(2) == b"up"
        assert procfs.environment(child.pid) == {"CUDA_VISIBLE_DEVICES": "0,1"}
        assert procfs.uid(child.pid) == (os.getuid(), os.getgid())
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("pid", [0, -1, (1 << 22) + 1, (1 << 31) - 1, 1 << 31, 1 << 64])
def test_a_number_that_no_process_has_is_no_process(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        ProcessHandle.open(pid)


def test_a_thread_is_no_process() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        with pytest.raises(ProcessLookupError):
            ProcessHandle.open(thread.native_id)
    finally:
        over.set()
        thread.join()


HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("path", "container"),
    [
        (f"/system.slice/docker-{HEX}.scope", HEX),
        (f"/kubepods/burstable/pod1234/{HEX}", HEX),
        (f"/kubepods.slice/cri-containerd-{HEX}.scope", HEX),
        (f"/kubepods.slice/crio-{HEX}.scope/container", HEX),
        ("/user.slice/user-1000.slice/session-2.scope", None),
        ("/", None),
    ],
)
def test_the_container_is_read_off_the_cgroup(path: str, container: str | None) -> None:
    assert procfs.container(path) == container


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_the_kernel_names_the_holder_of_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "control_lock"
    assert file_lock.holder(path) is None
    path.touch()
    assert file_lock.holder(path) is None
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    assert file_lock.holder(path) == other.pid
    path.chmod(0o666)
    directory = Directory.open(tmp_path)
    with pytest.raises(LockHeldError) as refused:
        FileLock.take(directory, path.name)
    assert refused.value.pid == other.pid
    other.communicate("")
    lock = FileLock.take(directory, path.name)
    directory.close()
    assert path.stat().st_mode & 0o777 == 0o666
    lock.close()
    lock.close()
    assert path.exists()


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "control_lock").symlink_to(victim)
    with Directory.open(tmp_path) as directory, pytest.raises(OSError, match="control_lock"):
        FileLock.take(directory, "control_lock")
    assert victim.stat().st_mode & 0o777 != 0o666


@pytest.mark.parametrize("odd", ["\x0b", "\x1c", "\r", "\u2028"])
def test_the_name_of_a_cgroup_is_no_line(odd: str) -> None:
    """A user that owns a part of the tree makes names in it; the kernel refuses none but those with a newline."""
    text = f"4:memory:/m\n0::/user{odd}0::/docker/{HEX}\n".encode()
    assert procfs.cgroup_paths(text) == {"memory": "/m", "": f"/user{odd}0::/docker/{HEX}"}
    assert procfs.cgroup_of(text) == f"/user?0::/docker/{HEX}"
