"""The directory of GPU core dumps: which files count, and for which process."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fault_injection.sim.core_dump import core_dump, sm_row, thread_row
from mpsguard.guard.model import Client
from mpsguard.guard.sensors import core_directory
from mpsguard.guard.sensors.core_directory import CoreDirectory
from mpsguard.guard.sensors.gpu_core import GpuCore
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes.process import ProcessHandle, tell_apart
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import until
from tests.hostile.held_exec import held_exec
from tests.unit.guard.sensors.test_sm_errors import PC


def _client(process: ProcessKey, uid: int) -> Client:
    return Client(process, uid, uid, "", cgroup="", container=None, gpus=None, domain="d", lane="l", connected_at=0.0)


WRITES = """
import os, sys
user = int(os.environ["USER_ID"])
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
for line in sys.stdin:
    name, number = line.split()
    with open(name, "r+b" if os.path.exists(name) else "wb") as file:
        file.write(bytes.fromhex(os.environ["DUMP"]))
    print("written", flush=True)
"""
DUMP = core_dump(sms=[sm_row(9, 6, PC)], threads=[thread_row(6)], grids=1)
VICTIM = 12345


class Writing:
    """A process that writes dumps under names it is given, as a user."""

    def __init__(self, uid: int = 0, dump: bytes = DUMP) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WRITES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={"DUMP": dump.hex(), "USER_ID": str(uid)},
        )  # fmt: skip
        self.handle = ProcessHandle.open(self.popen.pid)
        self.key = self.handle.key

    def write(self, path: Path) -> None:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.write(f"{path} 0\n")
        self.popen.stdin.flush()
        assert self.popen.stdout.readline() == "written\n"

    def end(self) -> None:
        self.popen.kill()
        self.popen.communicate()
        self.handle.close()


Heard = list[tuple[ProcessKey | None, bool]]


@pytest.fixture
def public_path() -> Iterator[Path]:
    """A directory that every user can reach."""
    with tempfile.TemporaryDirectory(prefix="mg-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


OWN = ProcessHandle.open(os.getpid())
"""A handle that the directory has no use for."""


def listening(path: Path, heard: Heard, *, identify: bool = True) -> CoreDirectory:
    def dumped(
        read: Callable[[], bytes | GpuCore], began: float, process: ProcessKey | None, *, verified: bool = False
    ) -> None:
        core = read()
        assert isinstance(core, GpuCore)
        assert core.raised
        assert began > 0
        heard.append((process, verified))

    return CoreDirectory(path, dumped, identify=identify)


def refused(cores: CoreDirectory) -> int:
    found = re.search(r"(\d+) files refused", cores.state().detail)
    return int(found[1]) if found else 0


needs_fanotify = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: fanotify tells of writers")


@needs_fanotify
def test_a_dump_is_that_of_the_process_that_wrote_it_whatever_its_name(public_path: Path) -> None:
    heard: Heard = []
    path = public_path / "cores"

    async def scenario() -> tuple[ProcessKey, ProcessKey]:
        before = open_descriptors()
        cores = listening(path, heard)
        victim, liar = Writing(VICTIM), Writing(VICTIM)
        try:
            for each in (victim, liar):
                cores.client_came(_client(each.key, VICTIM), each.handle)
            victim.write(path / f"core.{victim.key.pid}")
            await until(lambda: len(heard) == 1)
            # Another container's process under the same user, with the victim's pid in the name.
            liar.write(path / f"core.{victim.key.pid + 1}")
            await until(lambda: len(heard) == 2)
        finally:
            for each in (victim, liar):
                each.end()
            cores.close()
            cores.close()
        assert opened_since(before) == []
        return victim.key, liar.key

    victim, liar = asyncio.run(scenario())
    assert heard == [(victim, True), (liar, True)]


@needs_fanotify
def test_a_file_that_another_process_made_or_wrote_to_is_no_evidence(public_path: Path) -> None:
    heard: Heard = []
    path = public_path / "cores"

    async def scenario() -> None:
        path.mkdir()
        path.chmod(0o1733)
        cores = listening(path, heard)
        victim, stranger = Writing(VICTIM), Writing(VICTIM)
        try:
            cores.client_came(_client(victim.key, VICTIM), victim.handle)
            stranger.write(path / "core.2")
            await until(lambda: refused(cores) == 1)
            # Made by the stranger, which may still hold it, and filled by the victim: neither's word.
            victim.write(path / "core.2")
            victim.write(path / "notes.txt")
            await until(lambda: refused(cores) == 2)
            victim.write(path / "core.4")
            await until(lambda: bool(heard))
        finally:
            victim.end()
            stranger.end()
            cores.close()
        assert heard == [(victim.key, True)]

    asyncio.run(scenario())


@needs_fanotify
@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE here")
@pytest.mark.skipif(not tell_apart(), reason="before Linux 6.9 a process is told by its start time")
def test_a_writer_that_does_not_end_its_exec_keeps_no_dump_of_others_from_being_read(public_path: Path) -> None:
    """It opens core files right before: when the directory learns of most, its start time cannot be read any more."""
    heard: Heard = []
    path = public_path / "cores"

    async def scenario() -> None:
        cores = listening(path, heard)
        victim = Writing(VICTIM)
        try:
            cores.client_came(_client(victim.key, VICTIM), victim.handle)
            with held_exec([65534], *(path / f"core.{number}" for number in range(1, 60))):
                victim.write(path / "core.100")
                await until(lambda: bool(heard))
        finally:
            victim.end()
            cores.close()
        assert heard == [(victim.key, True)]

    asyncio.run(scenario())


@needs_fanotify
def test_a_file_that_no_parser_expects_does_not_end_the_watch(public_path: Path) -> None:
    """Section headers beyond the file: a user that may write there must not keep others' dumps from being read."""
    heard: Heard = []
    path = public_path / "cores"
    spoilt = bytearray(core_dump(extended=True))
    spoilt[40:48] = b"\xff" * 8

    async def scenario() -> None:
        cores = listening(path, heard)
        stranger, victim = Writing(65534, bytes(spoilt)), Writing(VICTIM)
        try:
            cores.client_came(_client(victim.key, VICTIM), victim.handle)
            stranger.write(path / "core.1")
            await until(lambda: refused(cores) == 1)
            victim.write(path / "core.2")
            await until(lambda: bool(heard))
        finally:
            stranger.end()
            victim.end()
            cores.close()
        assert heard == [(victim.key, True)]

    asyncio.run(scenario())


@needs_fanotify
def test_a_file_that_was_there_long_before_is_no_evidence(public_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_directory, "_NEW", 0.0)
    heard: Heard = []

    async def scenario() -> None:
        cores = listening(public_path / "cores", heard)
        victim = Writing(VICTIM)
        try:
            cores.client_came(_client(victim.key, VICTIM), victim.handle)
            victim.write(public_path / "cores" / "core.1")
            await until(lambda: refused(cores) == 1)
        finally:
            victim.end()
            cores.close()

    asyncio.run(scenario())
    assert heard == []


def test_without_fanotify_a_file_counts_under_its_pid_and_from_its_user_and_is_not_verified(tmp_path: Path) -> None:
    heard: Heard = []
    path = tmp_path / "cores"
    own, others = ProcessKey(77, 1), ProcessKey(88, 1)

    async def scenario() -> None:
        before = open_descriptors()
        cores = listening(path, heard, identify=False)
        cores.client_came(_client(own, os.geteuid()), OWN)
        cores.client_came(_client(others, os.geteuid() + 1), OWN)
        outside = tmp_path / "outside"
        outside.write_bytes(DUMP)
        (path / "core.99").symlink_to(outside)
        os.mkfifo(path / "core.98")
        for name in ("notes.txt", "core.88", "core.66"):
            (path / name).write_bytes(DUMP)
        with (path / "core.78").open("wb") as sparse:
            sparse.truncate(1 << 40)
        (path / "core.77").write_bytes(DUMP)
        await until(lambda: bool(heard) and refused(cores) >= 4)
        cores.close()
        assert opened_since(before) == []
        assert "not verified" in cores.state().detail

    asyncio.run(scenario())
    assert heard == [(own, False)]
    assert path.stat().st_mode & 0o7777 == 0o1733


@needs_fanotify
def test_thousands_of_files_and_sparse_ones_cost_a_user_its_share_alone(public_path: Path) -> None:
    heard: Heard = []
    path = public_path / "cores"

    async def scenario() -> None:
        cores = listening(path, heard)
        flood, victim = Writing(65534), Writing(VICTIM)
        try:
            before = open_descriptors()
            most = 0
            for each in (flood, victim):
                cores.client_came(_client(each.key, 65534 if each is flood else VICTIM), each.handle)
            for number in range(600):
                flood.write(path / f"core.{number + 1}")
                most = max(most, len(open_descriptors() - before))
            victim.write(path / "core.100000")
            await until(lambda: any(process == victim.key for process, _ in heard))
            await until(lambda: not opened_since(before))
        finally:
            flood.end()
            victim.end()
            cores.close()
        assert most < 400

    asyncio.run(scenario())
    assert 1 <= sum(process is not None for process, _ in heard) <= 2 * 64 + 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a directory of another user")
def test_a_directory_of_another_user_or_behind_a_users_link_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    os.lchown(link, 12345, 12345)

    async def scenario() -> None:
        for path in (theirs, link):
            with pytest.raises(OSError, match=r"."):
                listening(path, [])

    asyncio.run(scenario())
    assert theirs.stat().st_uid == 12345


@needs_fanotify
def test_the_writer_of_a_file_is_asked_for_within_a_users_share_alone(
    public_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that takes a look into /proc, before Linux 6.9."""
    monkeypatch.setattr(core_directory, "tell_apart", lambda: False)
    heard: Heard = []
    path = public_path / "cores"
    files, share = 400, 64
    looks: list[str] = []

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event == "open" and threading.current_thread().name == CoreDirectory.name:
            looks.append(str(arguments[0]))

    async def scenario() -> None:
        cores = listening(path, heard)
        flood, victim = Writing(65534), Writing(VICTIM)
        try:
            cores.client_came(_client(victim.key, VICTIM), victim.handle)
            for number in range(files):
                flood.write(path / f"core.{number + 1}")
            victim.write(path / "core.100000")
            await until(lambda: bool(heard))
        finally:
            flood.end()
            victim.end()
            cores.close()
        assert heard == [(victim.key, True)]

    watching = True
    # Never taken away again.
    sys.addaudithook(note)
    asyncio.run(scenario())
    watching = False
    asked = [name for name in looks if name.startswith("/proc/") and name.endswith("/stat")]
    # Each file is opened and closed.
    assert 2 <= len(asked) <= 3 * (share + 1)
