"""`mpsguard-ctl snapshot` of programs under the preload, against a stub libcuda: real sockets, processes and users."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pytest

from mpsguard.images.snapshot.memory_requests import MemoryRequests, RegionGoneError
from mpsguard.images.snapshot.program import PreloadedProgram
from mpsguard.preload.library import PreloadSettings
from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import wait_for
from tests.integration.preload.bench import SECONDS, Bench

Bytes = np.ndarray[Any, Any]
STRANGER = 65534
NOT_PRELOADED, NO_ROOM = 6, 7
ASKING = """
import os, socket, sys
os.setresuid(*[int(sys.argv[1])] * 3)
asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asked.settimeout(60)
asked.connect(bytes.fromhex(sys.argv[2]))
try:
    asked.send(bytes.fromhex(sys.argv[3]))
    data, ancillary = asked.recvmsg(100, 100)[:2]
    print(f"answer {data.hex()} and {len(ancillary)}")
except OSError:
    print("refused")
"""
"""Asks a program's socket as the user of that number."""
AS_USER = """
import os, sys
from mpsguard.images.snapshot import copying
user = int(sys.argv[1])
os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
parent = os.open(sys.argv[3], os.O_RDONLY)
os.mkdir("draft", 0o700, dir_fd=parent)
sys.exit(copying.main(int(sys.argv[2]), 10.0, parent, "draft"))
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


class Target(NamedTuple):
    """A program that has said what it has."""

    process: subprocess.Popen[str]
    child: int
    allocations: list[tuple[str, int, int, int]]
    """What, address, size, salt."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, line: str) -> str:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{line}\n")
        stdin.flush()
        return stdout.readline().strip()


@contextmanager
def target(
    bench: Bench, settings: PreloadSettings | None = None, user: int | None = None, within: tuple[str, ...] = ()
) -> Iterator[Target]:
    """The program of `scenarios_snapshot.c`, with a child that has what it inherited.

    ``within`` is a command that executes the one after it.
    """
    process: subprocess.Popen[str] = subprocess.Popen(
        [*within, str(bench.directory / "program"), "dlsym", "snapshot_target"],
        env=bench.environment(settings or PreloadSettings()),
        cwd=bench.directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    child = 0
    try:
        told = [line.split() for line in until_ready(process.stdout)]
        child = next(int(words[1]) for words in told if words[0] == "child")
        has = [(words[0], int(words[1]), int(words[2]), int(words[3])) for words in told if len(words) == 4]
        yield Target(process, child, has)
        assert process.poll() is None
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
        process.kill()
        process.communicate()


def until_ready(stream: IO[str] | None) -> list[str]:
    assert stream is not None
    lines: list[str] = []
    while (line := stream.readline()) != "ready\n":
        assert line, f"it ended: {lines}"
        lines.append(line)
    return lines


def command(
    pid: int, output: Path, *words: str, first: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as temporary:
        done = subprocess.run(
            [sys.executable, "-m", "mpsguard.cli.ctl", *words, "snapshot", str(pid), "--output", str(output)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": temporary},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            preexec_fn=first,
        )
        assert os.listdir(temporary) == []
    return done


def refused(done: subprocess.CompletedProcess[str], directory: Path, code: int = 1) -> str:
    """One line with the reason; nothing left over."""
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr.startswith("mpsguard-ctl: ")
    assert done.stderr.count("\n") == 1
    assert list(directory.iterdir()) == []
    return done.stderr


def expected(size: int, salt: int) -> Bytes:
    index: Bytes = np.arange(size, dtype=np.uint64)
    wanted: Bytes = ((index * 31 + index // 4096 * 7 + salt) & 0xFF).astype(np.uint8)
    return wanted


def content(directory: Path, document: Mapping[str, list[dict[str, object]]], address: int, size: int) -> Bytes:
    for each in document["allocations"]:
        start, length = each["address"], each["size"]
        assert isinstance(start, int)
        assert isinstance(length, int)
        if start <= address and address + size <= start + length:
            loaded: Bytes = np.load(directory / str(each["file"]), mmap_mode="r")
            found: Bytes = loaded[address - start :][:size]
            return found
    raise AssertionError(f"no allocation has {address:#x}")


def test_all_allocations_are_there_byte_by_byte_and_the_program_runs_on(plain: Bench, tmp_path: Path) -> None:
    output = tmp_path / "snapshot"
    with target(plain) as program:
        assert program.say("step") == "1"
        done = command(program.pid, output, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        assert program.say("step") == "2"
        with PreloadedProgram(program.pid) as seen:
            assert seen.table().counters["snapshot_exported"] == 4
    document = json.loads((output / "allocations.json").read_text())
    for what, address, size, salt in program.allocations:
        assert np.array_equal(content(output, document, address, size), expected(size, salt)), what
    kinds = sorted((each["kind"], each["freed"]) for each in document["allocations"])
    assert kinds == [
        ("allocation", False),
        ("small allocations", False),
        ("stream-ordered allocation", False),
        ("stream-ordered allocation", True),
    ]
    assert (document["pid"], document["uid"], document["skipped"]) == (program.pid, os.getuid(), [])
    counted = {each["what"]: each["count"] for each in document["not_included"] if each["count"] is not None}
    assert counted == {"plain_capture": 1}
    assert "managed memory" in {each["what"] for each in document["not_included"]}
    said = json.loads(done.stdout)
    assert (said["allocations"], said["skipped"], said["not_included"]) == (4, 0, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot"]
    assert output.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in output.iterdir()} == {0o600}


def test_regions_come_and_go_while_they_are_asked_for(plain: Bench) -> None:
    with target(plain) as program, PreloadedProgram(program.pid) as seen:
        table = seen.table()
        assert table.service is not None
        requests = MemoryRequests(program.pid, table.service, SECONDS)
        (large,) = [region for region in table.regions if region.size > 5 << 20]
        assert program.say("free") == "1"
        with pytest.raises(RegionGoneError):
            requests.ask(large.start, large.number)
        given = 0
        for count in range(2, 50):
            with ThreadPoolExecutor(1) as aside:
                answer = aside.submit(program.say, "churn")
                while not answer.done():
                    for region in seen.table().regions:
                        with suppress(RegionGoneError):
                            offer = requests.ask(region.start, region.number)
                            os.close(offer.fd)
                            assert (offer.address, offer.size) == (region.user, region.size)
                            given += 1
                assert answer.result() == str(count)
            if given > 100:
                break
        assert program.say("leave") == str(count + 1)


def test_a_directory_that_is_there_is_left_alone(plain: Bench, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with target(plain) as program:
        done = command(program.pid, tmp_path / "there")
    assert done.returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_program_that_cannot_be_looked_at_has_an_exit_code_of_its_own(plain: Bench, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        refused(command(other.pid, tmp_path / "x"), tmp_path, NOT_PRELOADED)
        other.kill()
    refused(command(other.pid, tmp_path / "x"), tmp_path)
    with target(plain, PreloadSettings(snapshots=False)) as program:
        refused(command(program.pid, tmp_path / "x"), tmp_path, NOT_PRELOADED)
    with target(plain) as program:
        # It has the parent's table and socket, and nothing of its own.
        assert str(program.pid) in refused(command(program.child, tmp_path / "x"), tmp_path, NOT_PRELOADED)


def test_a_program_that_is_stopped_does_not_hold_the_command_up(plain: Bench, tmp_path: Path) -> None:
    with target(plain) as program:
        os.kill(program.pid, signal.SIGSTOP)
        refused(command(program.pid, tmp_path / "x", "--deadline", "1"), tmp_path)
        os.kill(program.pid, signal.SIGCONT)
        assert program.say("step") == "1"


def test_a_full_disk_is_one_line_and_leaves_nothing(plain: Bench, tmp_path: Path) -> None:
    def most() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))

    with target(plain) as program:
        refused(command(program.pid, tmp_path / "x", first=most), tmp_path, NO_ROOM)
        assert program.say("step") == "1"


def test_a_command_that_is_ended_leaves_nothing(tmp_path: Path) -> None:
    with (
        lying("silence") as program,
        subprocess.Popen(
            [sys.executable, "-m", "mpsguard.cli.ctl", "--deadline", "2", "snapshot", str(program.pid)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
        ) as ended,
    ):
        wait_for("a draft", lambda: any(tmp_path.iterdir()))
        ended.send_signal(signal.SIGTERM)
        ended.communicate(timeout=SECONDS)
        wait_for("its removal", lambda: not any(tmp_path.iterdir()))


def test_the_working_directory_is_no_place_to_import_from(tmp_path: Path) -> None:
    """Root may call the command where another user can put files."""
    (tmp_path / "msgspec.py").write_text("raise SystemExit(77)")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mpsguard.cli.ctl", "snapshot", str(os.getpid()), "--output", "x"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, "preload" in done.stderr) == (NOT_PRELOADED, True), done


@contextmanager
def lying(*words: str) -> Iterator[subprocess.Popen[str]]:
    process: subprocess.Popen[str] = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.preload.false_program", *words],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        until_ready(process.stdout)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "lie",
    [
        "no descriptor",
        "another form",
        "several descriptors",
        "a pipe",
        "a file that is too small",
        "outside of its memory",
        "more than there is",
        "silence",
    ],
)
def test_what_a_program_hands_out_is_not_trusted(lie: str, tmp_path: Path) -> None:
    with lying(lie) as program:
        refused(command(program.pid, tmp_path / "x", "--deadline", "1"), tmp_path)


def test_a_program_cannot_pass_another_one_off_as_itself(plain: Bench, tmp_path: Path) -> None:
    with target(plain) as other, PreloadedProgram(other.pid) as seen:
        name = seen.table().service
        assert name is not None
        with lying("another's socket", name.hex()) as program:
            refused(command(program.pid, tmp_path / "x"), tmp_path, NOT_PRELOADED)


def reachable(bench: Bench, tmp_path: Path) -> None:
    for start in (bench.directory, tmp_path):
        for directory in [start, *start.parents]:
            if not directory.stat().st_mode & 0o001:
                directory.chmod(directory.stat().st_mode | 0o011)


def copied_as(user: int, pid: int, directory: Path) -> dict[str, object]:
    """Run the copying process as that user; its last word. It becomes that user late: its interpreter may be root's."""
    directory.mkdir()
    os.chown(directory, user, user)
    done = subprocess.run(
        [sys.executable, "-c", AS_USER, str(user), str(pid), str(directory)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    word: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return word


@as_root
def test_its_own_user_and_root_may_and_another_user_may_not(plain: Bench, tmp_path: Path) -> None:
    reachable(plain, tmp_path)
    with target(plain, user=STRANGER) as program:
        assert command(program.pid, tmp_path / "of-root").returncode == 0
        assert copied_as(STRANGER, program.pid, tmp_path / "own")["type"] == "whole"
        assert (tmp_path / "own" / "draft" / "allocations.json").stat().st_uid == STRANGER
        assert copied_as(STRANGER - 1, program.pid, tmp_path / "others")["type"] == "failed"
        assert list((tmp_path / "others").iterdir()) == []
        assert program.say("step") == "1"


@as_root
def test_the_program_gives_another_user_nothing(plain: Bench) -> None:
    """Past the command: the socket itself."""
    with target(plain) as program, PreloadedProgram(program.pid) as seen:
        table = seen.table()
        assert table.service is not None
        region = table.regions[0]
        request = b"mpsgSNP\1" + region.start.to_bytes(8, "little") + region.number.to_bytes(8, "little")
        address = b"\0mpsguard-ipc-" + table.service.hex().encode()
        words = [sys.executable, "-c", ASKING, str(STRANGER), address.hex(), request.hex()]
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True)
        assert done.stdout.strip() in {"refused", "answer  and 0"}
        words[3] = "0"
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True)
        assert re.fullmatch(r"answer 00[0-9a-f]+ and 1", done.stdout.strip())
        assert seen.table().counters["snapshot_exported"] == 1
