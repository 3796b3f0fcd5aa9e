"""What is believed of a lane's servers between two questions."""

import asyncio
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from mpsguard.guard.lanes import server_watch
from mpsguard.guard.lanes.command import CommandReply
from mpsguard.guard.lanes.server_watch import LogHint, Servers, ServerWatch
from mpsguard.linux.files.log_tail import LogTail
from mpsguard.linux.processes.stat_reader import StatReader
from tests.harness.waiting import PATIENCE

FAULT = "[2026-11-20 14:01:28.554 Server   479] Server is handling a fatal GPU error.\n"


@pytest.mark.parametrize("meanwhile", [True, False])
def test_an_answer_does_not_hold_if_the_log_spoke_while_it_was_given(tmp_path: Path, meanwhile: bool) -> None:
    async def scenario() -> bool:
        log = tmp_path / "server.log"
        log.touch()
        overheard = asyncio.Event()

        async def fault() -> None:
            with log.open("a") as file:
                file.write(FAULT)
            await asyncio.wait_for(overheard.wait(), PATIENCE)

        async def ask(line: str) -> CommandReply:
            if meanwhile:
                await fault()
            return CommandReply((), 0)

        watch = ServerWatch(log, ask, overheard.set, StatReader(), ended=lambda _: None, heard=lambda _: None)
        watch.begin()
        try:
            if not meanwhile:
                await fault()
            await watch.observe()
            return watch.undisturbed()
        finally:
            watch.end()

    assert asyncio.run(scenario()) is not meanwhile


async def _undisturbed(log: Path, meanwhile: Callable[[], None]) -> bool:
    """Whether an answer still holds after something happened to the log."""
    log.touch()

    async def ask(_: str) -> CommandReply:
        return CommandReply((), 0)

    watch = ServerWatch(log, ask, lambda: None, StatReader(), ended=lambda _: None, heard=lambda _: None)
    watch.begin()
    try:
        await watch.observe()
        meanwhile()
        return watch.undisturbed()
    finally:
        watch.end()


@pytest.mark.parametrize("moved", [False, True])
def test_an_answer_holds_no_longer_than_a_moment_once_the_log_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    monkeypatch.setattr(server_watch, "_TRUSTED", 0.0)

    log = tmp_path / "server.log"

    def move() -> None:
        if moved:
            log.rename(tmp_path / "server.log.1")
            log.touch()

    assert asyncio.run(_undisturbed(log, move)) is not moved


def test_an_answer_holds_no_longer_than_a_moment_where_a_log_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_watch, "_TRUSTED", 0.0)
    monkeypatch.setattr(server_watch, "_ROOM", 1 << 62)

    assert not asyncio.run(_undisturbed(tmp_path / "server.log", lambda: None))


def test_servers_that_are_made_up_take_no_memory() -> None:
    async def ask(_: str) -> CommandReply:
        return CommandReply((), 0)

    servers = Servers(ask, lambda _: None, StatReader())
    tracemalloc.start()
    try:
        for pid in range(100_000):
            servers.note(pid, LogHint.FAULT_BEGINS)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


async def _seen(answers: dict[str, tuple[str, ...]]) -> tuple[list[tuple[int, str]], dict[int, int]]:
    """Return the servers and clients that a lane has, by what its daemon answers."""

    async def ask(command: str) -> CommandReply:
        return CommandReply(answers[command], 0)

    stats = StatReader()
    servers = Servers(ask, lambda _: None, stats)
    try:
        found = [(server.process.pid, server.state) for server in await servers.observe()]
        return found, await servers.clients()
    finally:
        servers.close()
        stats.close()


@pytest.mark.parametrize("odd", ["", "WARNING: something new", "0", "-1", "1073741824", "9999999999", "12 34", "٣"])
def test_a_line_that_is_no_pid_costs_itself_alone(odd: str) -> None:
    me = os.getpid()
    answers = {
        "get_server_list": (odd, f" {me} ", odd),
        f"get_server_status {me}": ("ACTIVE",),
        f"get_client_list {me}": ("7", odd, "8"),
    }
    assert asyncio.run(_seen(answers)) == ([(me, "ACTIVE")], {7: me, 8: me})


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        (("FAULT",), "FAULT"),
        (("WARNING: something new", " FAULT"), "FAULT"),
        (("INITIALIZING", "a line below"), "INITIALIZING"),
        (("RECOVERING",), "RECOVERING"),
        ((), ""),
    ],
)
def test_of_a_status_the_word_that_is_known_counts(lines: tuple[str, ...], word: str) -> None:
    me = os.getpid()
    answers = {"get_server_list": (f"{me}",), f"get_server_status {me}": lines, f"get_client_list {me}": ()}
    assert asyncio.run(_seen(answers))[0] == [(me, word)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[2026-11-20 14:01:28.554 Server   479] Server is handling a fatal GPU error.", (479, LogHint.FAULT_BEGINS)),
        (
            "[2026-11-20 14:01:28.556 Server   479] Failed to accept client {PID: 755, Context ID: 1} with status 807",
            (479, LogHint.FAULT_BEGINS),
        ),
        (
            "[2026-11-20 14:01:28.995 Server   479] Destroy server context on device 0 (NVIDIA H200)",
            (479, LogHint.FAULT_ENDS),
        ),
        ("[2026-11-20 14:01:20.377 Control   467] NEW SERVER 479: Ready", None),
        ("Server is handling a fatal GPU error.", None),
        ("", None),
        ("[] Server 1] x", None),
    ],
)
def test_hints(line: str, expected: tuple[int, LogHint] | None) -> None:
    assert server_watch.hint(line) == expected


def test_only_what_came_since_is_read_and_only_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("old\n")
    tail = LogTail(path)
    assert tail.read() == []
    with path.open("a") as log:
        log.write("one\ntw")
        log.flush()
        assert tail.read() == ["one"]
        log.write("o\n")
        log.flush()
        assert tail.read() == ["two"]


def test_a_log_that_was_cut_is_read_anew_and_one_that_is_missing_reads_as_empty(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    tail = LogTail(path)
    assert tail.read() == []
    path.write_text("first line of a log that appeared\n")
    assert tail.read() == ["first line of a log that appeared"]
    path.write_text("short\n")
    assert tail.read() == ["short"]
    path.unlink()
    assert tail.read() == []


def test_of_a_flood_only_the_end_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("")
    tail = LogTail(path)
    path.write_text("x" * 80 + "\n" + ("y" * 99 + "\n") * 10_000)
    lines = tail.read()
    assert 1000 < len(lines) < 4000
    assert lines[-1] == "y" * 99
