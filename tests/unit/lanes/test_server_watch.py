"""What is believed of a lane's servers between two questions."""

import asyncio
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from mpsguard.lanes import server_watch
from mpsguard.lanes.command import CommandReply
from mpsguard.lanes.server_log import LogHint
from mpsguard.lanes.server_watch import ServerWatch
from mpsguard.lanes.servers import Servers
from mpsguard.linux.processes.stat_reader import StatReader

FAULT = "[2026-11-20 14:01:28.554 Server   479] Server is handling a fatal GPU error.\n"
DEADLINE = 30


@pytest.mark.parametrize("meanwhile", [True, False])
def test_an_answer_does_not_hold_if_the_log_spoke_while_it_was_given(tmp_path: Path, meanwhile: bool) -> None:
    async def scenario() -> bool:
        log = tmp_path / "server.log"
        log.touch()
        overheard = asyncio.Event()

        async def fault() -> None:
            with log.open("a") as file:
                file.write(FAULT)
            await asyncio.wait_for(overheard.wait(), DEADLINE)

        async def ask(line: str) -> CommandReply:
            if meanwhile:
                await fault()
            return CommandReply((), 0)

        watch = ServerWatch(log, ask, overheard.set, StatReader())
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

    watch = ServerWatch(log, ask, lambda: None, StatReader())
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

    servers = Servers(ask, lambda: None, StatReader())
    tracemalloc.start()
    try:
        for pid in range(100_000):
            servers.note(pid, LogHint.FAULT_BEGINS)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
