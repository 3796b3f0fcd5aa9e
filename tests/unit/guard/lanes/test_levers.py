"""The levers of a server, moved for one client and put back; a STAND-IN for the control daemon has its words."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from mpsguard.guard import mps_values
from mpsguard.guard.lanes import levers as module
from mpsguard.guard.lanes.command import CommandFailedError, CommandReply
from mpsguard.guard.lanes.levers import LeverError, Levers, ServerLevers
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import procfs

BATCH = Levers(40.0, 1, {"0": "2G"})


class Daemon:
    """A STAND-IN for one control daemon with one server."""

    def __init__(self, server: int) -> None:
        self.server = str(server)
        self.share, self.priority, self.limits = "100.0", "0", dict[str, str]()
        self.given: tuple[str, dict[str, str]] = ("", {})
        """What it was told last, of which it shows less."""
        self.deaf = self.hangs = False
        self.asked: list[str] = []

    @property
    def at_rest(self) -> bool:
        return (self.share, self.priority, self.limits) == ("100.0", "0", {})

    async def ask(self, line: str) -> CommandReply:
        self.asked.append(line)
        await asyncio.sleep(0)
        if self.hangs:
            raise CommandFailedError(line)
        match line.split():
            case ["get_active_thread_percentage", pid]:
                return CommandReply((self.share if pid == self.server else f"Server {pid} not found",), 0)
            case ["get_default_client_priority"]:
                return CommandReply((self.priority,), 0)
            case ["get_device_pinned_mem_limit", _, gpu]:
                return CommandReply((self.limits[gpu],) if gpu in self.limits else (), 0)
            case _ if self.deaf:
                return CommandReply((), 0)
            case ["set_active_thread_percentage", _, share]:
                self.share = f"{float(share):.1f}"
                self.given = share, self.given[1]
            case ["set_default_client_priority", priority]:
                self.priority = priority
            case ["set_device_pinned_mem_limit", _, gpu, "0"]:
                self.limits.pop(gpu, None)
            case ["set_device_pinned_mem_limit", _, gpu, limit]:
                self.limits[gpu] = mps_values.shown_limit(mps_values.limit_bytes(limit))
                self.given = self.given[0], {**self.given[1], gpu: limit}
        return CommandReply((), 0)


UID = 1000
OTHER = 1001
SERVER = procfs.process_key(1)


async def is_running(process: ProcessKey) -> bool:
    return process == SERVER


@pytest.fixture
def daemon() -> Daemon:
    return Daemon(SERVER.pid)


async def failing(levers: ServerLevers) -> Exception | None:
    try:
        async with levers.moved(SERVER, BATCH, UID):
            raise ZeroDivisionError
    except ZeroDivisionError as error:
        return error


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


def test_they_are_moved_inside_and_back_outside(daemon: Daemon, tmp_path: Path) -> None:
    async def work() -> None:
        levers = ServerLevers(daemon.ask, tmp_path / "levers.json", is_running, Levers)
        async with levers.moved(SERVER, BATCH, UID):
            assert (daemon.share, daemon.priority, daemon.limits) == ("40.0", "1", {"0": "2G"})
        assert daemon.at_rest

    run(work())


def test_one_client_at_a_time_has_them(daemon: Daemon, tmp_path: Path) -> None:
    shares = []

    async def client(levers: ServerLevers, share: float) -> None:
        async with levers.moved(SERVER, Levers(share), UID):
            for _ in range(5):
                await asyncio.sleep(0)
                shares.append((share, float(daemon.share)))

    async def work() -> None:
        levers = ServerLevers(daemon.ask, tmp_path / "levers.json", is_running, Levers)
        await asyncio.gather(*(client(levers, 10.0 * number) for number in range(1, 10)))

    run(work())
    assert len(shares) == 45
    assert all(wanted == had for wanted, had in shares)
    assert daemon.at_rest


def test_a_handshake_that_is_cancelled_or_fails_leaves_none(daemon: Daemon, tmp_path: Path) -> None:
    async def work() -> None:
        levers = ServerLevers(daemon.ask, tmp_path / "levers.json", is_running, Levers)
        inside = asyncio.Event()

        async def client() -> None:
            async with levers.moved(SERVER, BATCH, UID):
                inside.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(client())
        await inside.wait()
        task.cancel()
        await asyncio.wait({task})
        assert daemon.at_rest
        assert isinstance(await failing(levers), ZeroDivisionError)
        assert daemon.at_rest

    run(work())


def test_what_is_not_taken_is_an_error_and_the_others_are_back(daemon: Daemon, tmp_path: Path) -> None:
    async def work() -> None:
        levers = ServerLevers(daemon.ask, tmp_path / "levers.json", is_running, Levers)
        daemon.deaf = True
        with pytest.raises(LeverError, match="40 %"):
            async with levers.moved(SERVER, BATCH, UID):
                pass
        daemon.deaf = False
        with pytest.raises(LeverError, match="not found"):
            async with levers.moved(ProcessKey(2, 2), BATCH, UID):
                pass
        assert daemon.at_rest

    run(work())


def test_the_next_guard_puts_back_what_one_that_was_killed_has_left(daemon: Daemon, tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "levers.json"
        killed = ServerLevers(daemon.ask, path, is_running, Levers)
        moved = killed.moved(SERVER, BATCH, UID)
        await moved.__aenter__()
        assert daemon.share == "40.0"
        following = ServerLevers(daemon.ask, path, is_running, Levers)
        await following.restore()
        assert daemon.share == "100.0"
        # And it takes nothing that was moved for a value at rest.
        async with following.moved(SERVER, Levers(30.0), UID):
            assert daemon.share == "30.0"
        assert daemon.at_rest
        await moved.__aexit__(None, None, None)

    run(work())


def test_after_a_failure_to_put_back_the_values_at_rest_are_still_known(daemon: Daemon, tmp_path: Path) -> None:
    async def work() -> None:
        levers = ServerLevers(daemon.ask, tmp_path / "levers.json", is_running, Levers)
        with pytest.raises(CommandFailedError):
            async with levers.moved(SERVER, BATCH, UID):
                daemon.hangs = True
        daemon.hangs = False
        async with levers.moved(SERVER, Levers(20.0, 1, {"0": "1G"}), UID):
            pass
        assert daemon.at_rest

    run(work())


def test_what_a_user_sets_is_where_they_rest_from_then_on(daemon: Daemon, tmp_path: Path) -> None:
    async def work() -> None:
        levers = ServerLevers(daemon.ask, tmp_path / "levers.json", is_running, Levers)
        async with levers.moved(SERVER, BATCH, UID):
            pass
        async with levers.left_alone(UID):
            levers.will_change(SERVER, Levers(80.0))
            await daemon.ask(f"set_active_thread_percentage {SERVER.pid} 33.333")
            levers.rests_at(SERVER, Levers(33.333))
        async with levers.moved(SERVER, BATCH, UID):
            assert daemon.share == "40.0"
        # Not the 33.3 that the daemon shows.
        assert daemon.asked[-1 - len(BATCH.limits) - 1] == f"set_active_thread_percentage {SERVER.pid} 33.333"

    run(work())


def test_they_rest_at_the_defaults_as_these_were_asked_for(daemon: Daemon, tmp_path: Path) -> None:
    """The daemon shows less: it would be put back where a server had more."""
    daemon.share, daemon.limits["0"] = "33.3", "1G"
    defaults = [Levers(33.333, 0, {"0": "1536M"})]

    async def work() -> None:
        levers = ServerLevers(daemon.ask, tmp_path / "levers.json", is_running, lambda: defaults[0])
        async with levers.moved(SERVER, BATCH, UID):
            pass
        assert daemon.given == ("33.333", {"0": "1536M"})
        # What is asked for from now on is for servers to come, also when the guard is another one.
        await levers.default_will_change([SERVER], Levers(50.0, limits={"0": "4G"}))
        defaults[0] = Levers(50.0, 0, {"0": "4G"})
        again = ServerLevers(daemon.ask, tmp_path / "levers.json", is_running, lambda: defaults[0])
        async with again.moved(SERVER, BATCH, UID):
            pass
        assert daemon.given == ("33.333", {"0": "1536M"})

    run(work())


def test_a_default_that_changes_is_noted_for_the_server_that_has_it(daemon: Daemon, tmp_path: Path) -> None:
    daemon.share, daemon.limits["0"] = "33.3", "1G"
    defaults = [Levers(33.333, 0, {"0": "1536M"})]

    async def work() -> None:
        levers = ServerLevers(daemon.ask, tmp_path / "levers.json", is_running, lambda: defaults[0])
        await levers.default_will_change([SERVER], Levers(33.3, limits={"0": "1700M"}))
        # Shown alike, and it is not what the server has.
        defaults[0] = Levers(33.3, 0, {"0": "1700M"})
        async with levers.moved(SERVER, BATCH, UID):
            pass
        assert daemon.given == ("33.333", {"0": "1536M"})

    run(work())


@pytest.mark.parametrize(
    ("shown", "defaults", "asked"),
    [
        (Levers(33.3), Levers(33.333), Levers(33.333)),
        (Levers(33.3), Levers(50.0), Levers(33.3)),
        (Levers(100.0), Levers(), Levers(100.0)),
        (Levers(limits={"0": "19G"}), Levers(limits={"0": "20389M"}), Levers(limits={"0": "20389M"})),
        (Levers(limits={"0": "19G"}), Levers(limits={"0": "2GB"}), Levers(limits={"0": "19G"})),
        (Levers(limits={"0": "2G"}), Levers(limits={"0": "2GB"}), Levers(limits={"0": "2GB"})),
        (Levers(limits={"0": "0"}), Levers(limits={"0": "none"}), Levers(limits={"0": "none"})),
        (Levers(limits={"1": "19G"}), Levers(limits={"0": "20389M"}), Levers(limits={"1": "19G"})),
    ],
)
def test_what_is_shown_stands_for_what_was_asked_for(shown: Levers, defaults: Levers, asked: Levers) -> None:
    assert module.as_asked(shown, defaults) == asked


def test_commands_of_users_wait_in_bounded_number(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_COMMANDS", 3)
    monkeypatch.setattr(module, "_MAX_COMMANDS_OF_A_USER", 2)

    async def sets(levers: ServerLevers, uid: int) -> None:
        async with levers.left_alone(uid):
            pass

    async def work() -> None:
        levers = ServerLevers(daemon.ask, tmp_path / "levers.json", is_running, Levers)
        async with levers.left_alone(UID):
            waiting = [asyncio.create_task(sets(levers, uid)) for uid in (UID, OTHER, 0, 0, 0)]
            await asyncio.sleep(0)
            # The first has its share, and all places are taken.
            for uid in (UID, OTHER):
                with pytest.raises(CommandFailedError, match="wait already"):
                    await sets(levers, uid)
        # Root's are taken in any case.
        await asyncio.gather(*waiting)
        await sets(levers, UID)

    run(work())


@pytest.mark.parametrize("share", [33.333, 54.68, 0.1, 99.95])
def test_a_share_with_more_decimals_than_the_daemon_shows_is_taken(
    daemon: Daemon, tmp_path: Path, share: float
) -> None:
    async def work() -> None:
        levers = ServerLevers(daemon.ask, tmp_path / "levers.json", is_running, Levers)
        async with levers.moved(SERVER, Levers(share), UID):
            assert daemon.share == f"{share:.1f}"
        assert daemon.at_rest

    run(work())
