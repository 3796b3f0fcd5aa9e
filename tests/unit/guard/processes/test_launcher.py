"""The launcher as a real process, over programs that stand for a control daemon."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mpsguard.guard.lanes.control_process import LaneStartError, Launch
from mpsguard.guard.processes.launcher import MAX_BYTES, Answer, Launcher, LauncherEndedError, LaunchTable, Start
from tests.harness.guard_process import REPOSITORY
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import PATIENCE, wait_for


def launch(tmp_path: Path, script: str, name: str = "default-0") -> Launch:
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Launch(name, str(tmp_path / "pipe"), str(tmp_path / "log"), str(program), False, ("all",), PATIENCE)


async def started(launcher: Launcher, *launches: Launch) -> list[BaseException | None]:
    running = asyncio.create_task(launcher.run())
    try:
        return await asyncio.gather(*(launcher.start(each) for each in launches), return_exceptions=True)
    finally:
        running.cancel()
        await asyncio.wait({running})


def test_a_start_has_the_lanes_environment_and_none_of_our_descriptors(tmp_path: Path) -> None:
    what = launch(tmp_path, f'echo "$1 $CUDA_MPS_PIPE_DIRECTORY" > {tmp_path}/said; ls /proc/self/fd > {tmp_path}/fds')
    with Launcher([what]) as launcher:
        assert asyncio.run(started(launcher, what)) == [None]
    assert (tmp_path / "said").read_text() == f"-d {tmp_path}/pipe\n"
    # Standard streams, and the directory that ls reads.
    assert (tmp_path / "fds").read_text().split() == ["0", "1", "2", "3"]


def test_nothing_is_imported_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher has the guard's full rights; root may start a guard in a directory of another user."""
    strangers = tmp_path / "strangers"
    strangers.mkdir()
    for module in ("asyncio", "msgspec"):
        (strangers / f"{module}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    monkeypatch.chdir(strangers)
    what = launch(tmp_path, "exit 0")
    with Launcher([what]) as launcher:
        assert asyncio.run(started(launcher, what)) == [None]
    assert not (tmp_path / "imported").exists()


def test_starts_go_side_by_side_and_each_has_its_own_answer(tmp_path: Path) -> None:
    # The first waits for the second: one after the other they would never end.
    first = launch(tmp_path, f"while [ ! -e {tmp_path}/go ]; do sleep 0.01; done", "default-0")
    second = launch(tmp_path, f"touch {tmp_path}/go; echo no GPU; exit 3", "default-1")
    with Launcher([first, second]) as launcher:
        good, bad = asyncio.run(started(launcher, first, second))
    assert good is None
    assert isinstance(bad, LaneStartError)
    assert "status 3" in str(bad)
    assert "no GPU" in str(bad)


def test_a_start_that_is_broken_off_leaves_no_process(tmp_path: Path) -> None:
    what = launch(tmp_path, f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 1000")

    async def scenario(launcher: Launcher) -> None:
        running = asyncio.create_task(launcher.run())
        starting = asyncio.create_task(launcher.start(what))
        while not (tmp_path / "pid").exists():
            await asyncio.sleep(0.01)
        starting.cancel()
        await asyncio.wait({starting})
        pid = int((tmp_path / "pid").read_text())
        await asyncio.to_thread(wait_for, "its end", lambda: not Path(f"/proc/{pid}").exists())
        running.cancel()
        await asyncio.wait({running})

    with Launcher([what]) as launcher:
        asyncio.run(scenario(launcher))


def test_a_guard_cannot_have_anything_else_started(tmp_path: Path) -> None:
    """As a guard would ask that has been taken over: past the check on its own side."""
    known = launch(tmp_path, f"touch {tmp_path}/started")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(PATIENCE)
    with ours:
        with theirs:
            program = "from mpsguard.guard.processes import launcher; launcher.main()"
            child = subprocess.Popen([sys.executable, "-c", program], stdin=theirs.fileno(), cwd=REPOSITORY)
        ours.send(msgspec.msgpack.encode(LaunchTable((known,))))
        for number, lane in enumerate(("other", "../default-0", "default-0")):
            ours.send(msgspec.msgpack.encode(Start(number, lane)))
        answers = [msgspec.msgpack.decode(ours.recv(MAX_BYTES), type=Answer) for _ in range(3)]
    assert child.wait(PATIENCE) == 0
    assert {answer.number for answer in answers if answer.error is None} == {2}
    assert (tmp_path / "started").exists()


def test_its_end_is_reported_and_so_is_a_start_without_it(tmp_path: Path) -> None:
    what = launch(tmp_path, "exit 0")

    async def scenario(launcher: Launcher) -> None:
        os.kill(launcher.pid, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(LauncherEndedError):
                await launcher.run()
            with pytest.raises(LaneStartError):
                await launcher.start(what)

    with Launcher([what]) as launcher:
        asyncio.run(scenario(launcher))


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    what = launch(tmp_path, "exit 0")
    with Launcher([what]):
        pass
    before = open_descriptors()
    for _ in range(20):
        with Launcher([what]) as launcher:
            pid = launcher.pid
        assert not Path(f"/proc/{pid}").exists()
    assert opened_since(before) == []
