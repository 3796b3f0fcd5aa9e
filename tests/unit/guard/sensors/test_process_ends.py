"""How clients end, as evidence: real processes, and a real kill for want of memory where a cgroup can be made."""

import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.guard.broker.client_table import identify
from mpsguard.guard.evidence import Evidence, ProcessEnded, Source, Trust
from mpsguard.guard.sensors.process_ends import Hierarchy, OomKills, ProcessEndsSensor, hierarchies
from mpsguard.linux.identity import Credentials
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.process_exit import ExitWatch, Mechanism
from mpsguard.linux.processes.process_reader import UNKNOWN
from tests.harness.open_descriptors import open_descriptors, opened_since

LIMIT = 64 << 20
V1 = Path("/sys/fs/cgroup/memory")

# Says that it is up, waits to be told, then does what its argument says.
PROGRAM = """
import os, sys
print("up", flush=True)
sys.stdin.readline()
exec(sys.argv[1])
"""
SEGFAULT = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), 11)"
EAT = "kept = [b'x' * (1 << 20) + bytes([i % 256]) for i in range(256)]"


class Running:
    """A client-like process and the guard's view of it."""

    def __init__(self, then: str = "pass", cgroup: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, then],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(self.process.pid))
        self.handle = ProcessHandle.open(self.process.pid)
        owner = Credentials(self.process.pid, os.getuid(), os.getgid())
        self.client = identify(self.handle, owner, UNKNOWN, domain="default", lane="a", adopted=False)

    def end(self, number: signal.Signals | None = None) -> None:
        """Let it go on, or kill it; come back when the pidfd says that it has ended."""
        if number is not None:
            self.handle.signal(number)
        else:
            assert self.process.stdin is not None
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        ended = select.poll()
        ended.register(self.handle, select.POLLIN)
        assert ended.poll(30_000)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.handle.close()


def ended(evidence: Evidence) -> ProcessEnded:
    assert isinstance(evidence.what, ProcessEnded)
    return evidence.what


@pytest.fixture
def sensor() -> Iterator[ProcessEndsSensor]:
    before = open_descriptors()
    opened = ProcessEndsSensor()
    yield opened
    opened.close()
    opened.close()
    assert opened_since(before) == []


def end_of(sensor: ProcessEndsSensor, running: Running, number: signal.Signals | None = None) -> Evidence:
    sensor.client_came(running.client, running.handle)
    running.end(number)
    try:
        return sensor.end_of(running.client, running.handle)
    finally:
        running.close()


@pytest.mark.parametrize(
    ("then", "number", "exit_code", "by"),
    [
        ("sys.exit(0)", None, 0, None),
        ("sys.exit(3)", None, 3, None),
        ("pass", signal.SIGKILL, None, signal.SIGKILL),
        ("pass", signal.SIGTERM, None, signal.SIGTERM),
        (SEGFAULT, None, None, signal.SIGSEGV),
    ],
)
def test_an_end_is_evidence_of_that_process_alone(
    sensor: ProcessEndsSensor,
    then: str,
    number: signal.Signals | None,
    exit_code: int | None,
    by: int | None,
) -> None:
    running = Running(then)
    evidence = end_of(sensor, running, number)
    assert ended(evidence) == ProcessEnded(exit_code, by, oom_killed=False, work_in_flight=None)
    assert (evidence.source, evidence.trust, evidence.process) == (
        Source.PROCESSES,
        Trust.PROOF,
        running.client.process,
    )
    assert evidence.serial == f"{running.process.pid}.{running.client.process.start_ticks}"


def test_what_the_kernel_does_not_say_is_unknown() -> None:
    sensor = ProcessEndsSensor(ExitWatch(Mechanism.ZOMBIES), {})
    running = Running()
    sensor.client_came(running.client, running.handle)
    running.process.kill()
    running.process.wait()
    assert ended(sensor.end_of(running.client, running.handle)) == ProcessEnded(None, None, False, None)
    running.close()
    state = sensor.state()
    assert state.present
    assert "no cgroup hierarchy accounts for memory" in state.detail
    assert sensor.name == "procs"


def test_the_end_of_a_client_that_was_not_announced_is_reported_all_the_same(sensor: ProcessEndsSensor) -> None:
    if not sensor.state().detail.endswith("by pidfd"):
        pytest.skip("only a pidfd tells of what was not watched")
    running = Running()
    running.end(signal.SIGKILL)
    assert ended(sensor.end_of(running.client, running.handle)) == ProcessEnded(None, 9, False, None)
    running.close()


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A real cgroup that can hold LIMIT bytes."""
    if False not in hierarchies():
        pytest.skip("no v1 memory controller is mounted")
    own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line)
    path = V1 / own.split(":", 2)[2].lstrip("/") / f"mpsguard-{uuid.uuid4().hex}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    try:
        (path / "memory.limit_in_bytes").write_text(str(LIMIT))
        yield path
    finally:
        path.rmdir()


@pytest.mark.root
def test_a_real_kill_for_want_of_memory_is_told_from_a_murder(sensor: ProcessEndsSensor, memory_cgroup: Path) -> None:
    """Two clients in one cgroup: one eats too much, the other is killed by hand afterwards."""
    glutton, bystander = Running(EAT, memory_cgroup), Running("pass", memory_cgroup)
    sensor.client_came(bystander.client, bystander.handle)
    victim = end_of(sensor, glutton)
    assert ended(victim) == ProcessEnded(None, 9, oom_killed=True, work_in_flight=None)
    assert ended(end_of(sensor, Running("pass", memory_cgroup), signal.SIGKILL)).oom_killed is False
    bystander.end(signal.SIGKILL)
    assert ended(sensor.end_of(bystander.client, bystander.handle)).oom_killed is False
    bystander.close()
    assert "unseen" not in sensor.state().detail


def write_count(directory: Path, name: str, count: int) -> None:
    (directory / name).write_text(f"low 0\nhigh 0\nmax 7\noom 9\noom_kill {count}\noom_group_kill 0\n")


@pytest.fixture
def v2(tmp_path: Path) -> Iterator[tuple[Path, OomKills, Running]]:
    """A tree that looks like cgroup v2's to a process that is in its root."""
    running = Running()
    lines = Path(f"/proc/{running.process.pid}/cgroup").read_text().splitlines()
    own = next((line.split(":", 2)[2] for line in lines if line.startswith("0::")), None)
    if own is None:
        running.close()
        pytest.skip("no v2 hierarchy on this machine")
    directory = tmp_path / own.lstrip("/")
    directory.mkdir(parents=True, exist_ok=True)
    yield directory, OomKills({True: Hierarchy(True, tmp_path, "/")}), running
    running.close()


@pytest.mark.parametrize("name", ["memory.events.local", "memory.events"])
def test_v2_counts_are_read(v2: tuple[Path, OomKills, Running], name: str) -> None:
    directory, kills, running = v2
    write_count(directory, name, 4)
    for killed, count, victim in [(True, 4, False), (True, 5, True), (True, 5, False), (False, 6, False)]:
        kills.came(running.client.process)
        write_count(directory, name, count)
        assert kills.left(running.client.process, killed=killed) is victim
    assert kills.blind == 0
    assert kills._claimed == {}


def test_the_local_count_goes_before_that_of_the_tree(v2: tuple[Path, OomKills, Running]) -> None:
    directory, kills, running = v2
    write_count(directory, "memory.events.local", 0)
    write_count(directory, "memory.events", 0)
    kills.came(running.client.process)
    write_count(directory, "memory.events", 1)
    assert not kills.left(running.client.process, killed=True)


def test_one_kill_is_claimed_by_one_process(v2: tuple[Path, OomKills, Running]) -> None:
    directory, kills, running = v2
    other = Running()
    write_count(directory, "memory.events", 0)
    kills.came(running.client.process)
    kills.came(other.client.process)
    write_count(directory, "memory.events", 1)
    assert kills.left(running.client.process, killed=True)
    assert not kills.left(other.client.process, killed=True)
    other.close()


def test_a_cgroup_that_is_gone_is_said(v2: tuple[Path, OomKills, Running]) -> None:
    directory, kills, running = v2
    write_count(directory, "memory.events", 0)
    kills.came(running.client.process)
    (directory / "memory.events").unlink()
    assert not kills.left(running.client.process, killed=True)
    assert kills.blind == 1
    assert "no count of kills" in kills.blind_why
    assert kills._claimed == {}
    assert kills._since == {}


def test_a_process_that_is_gone_is_said() -> None:
    running = Running()
    running.close()
    kills = OomKills(hierarchies())
    kills.came(running.client.process)
    assert not kills.left(running.client.process, killed=True)
    assert kills.blind == 1


MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
35 31 0:32 /docker/1 /sys/fs/cgroup/memory rw,relatime shared:12 master:3 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
43 31 0:38 / /elsewhere rw,relatime - cgroup2 cgroup2 rw
"""


def test_hierarchies_are_found(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert hierarchies(mounts) == {
        False: Hierarchy(False, Path("/sys/fs/cgroup/memory"), "/docker/1"),
        True: Hierarchy(True, Path("/sys/fs/cgroup/unified"), "/"),
    }


def test_a_cgroup_is_found_below_what_is_mounted() -> None:
    inside = Hierarchy(False, Path("/m"), "/docker/1")
    assert inside.counters("/docker/1/x") == (Path("/m/x/memory.oom_control"),)
    assert Hierarchy(True, Path("/u"), "/").counters("/a b")[0] == Path("/u/a b/memory.events.local")
    for hidden in ("/docker/2", "/docker/11", "/docker/1/../2"):
        with pytest.raises(FileNotFoundError, match="not to be seen"):
            inside.counters(hidden)


@pytest.mark.root
def test_a_cgroup_with_an_odd_name_is_counted(sensor: ProcessEndsSensor, memory_cgroup: Path) -> None:
    odd = memory_cgroup / "a\x0bb"
    odd.mkdir()
    try:
        assert ended(end_of(sensor, Running("pass", odd), signal.SIGKILL)).oom_killed is False
        assert "unseen" not in sensor.state().detail
    finally:
        odd.rmdir()
