"""Where a scene is played: a pipe directory, stock or the guard's, its clients, and a column of the screen."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.demo import screen
from examples.demo.actor import PATIENCE, Actor
from examples.demo.ctl import Ctl
from examples.demo.fact import Cell
from examples.demo.machine import DemoPrograms
from examples.demo.screen import Screen
from mpsguard.linux.files import file_lock
from mpsguard.linux.processes.process import ProcessHandle
from tests.bench.core.bench import Bench, Target
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.guard import Guard, Options
from tests.bench.core.programs import Work
from tests.harness.ending import ended

UNTIL_TOLD: Final = Work(seconds=60, controlled=True)
"""A client that computes until it is asked to end."""
_POLL: Final = 0.05
_PARKS: Final = 20.0
_DIES: Final = 10.0


class Place:
    """One side of a scene."""

    def __init__(self, side: screen.Side, target: Target, clients: Clients, stage: "Stage") -> None:
        self.target = target
        self._side = side
        self._clients = clients
        self._stage = stage

    @property
    def programs(self) -> DemoPrograms:
        """The client programs."""
        return self._stage.programs

    def say(self, text: str) -> None:
        """Print a live line."""
        self._stage.screen.say(self._side, text)

    def start(self, name: str, argv: Sequence[str] | None = None, variables: Mapping[str, str] | None = None) -> Actor:
        """Start a client; without a command line, a worker that computes until it is asked to end."""
        argv = self.programs.worker(UNTIL_TOLD) if argv is None else argv
        client = self._clients.start(argv, self.target.pipe_directory, name, variables)
        return Actor(name, client, self._stage.screen, self.say)

    def crowd(self, *names: str) -> list[Actor]:
        """Start clients one after the other, each with a context and its first kernel done, none computing yet."""
        actors = []
        for name in names:
            actor = self.start(name)
            actor.arrive()
            actors.append(actor)
        return actors

    def under_mps(self, actors: Sequence[Actor]) -> list[Actor]:
        """Return those that `get_client_list` names."""
        listed = self.target.ui.all_clients()
        return [actor for actor in actors if actor.pid in listed]

    @contextmanager
    def terminated(self, actor: Actor) -> Iterator[Actor]:
        """At the end of the block, SIGTERM a program that does not read its input, and wait for its end."""
        try:
            yield actor
        finally:
            if actor.client.ended_with() is None:
                with ProcessHandle.open(actor.pid) as process:
                    process.signal(signal.SIGTERM)
            actor.client.finish(PATIENCE)

    def kill_control_daemon(self) -> None:
        """SIGKILL the MPS control daemon that serves this place, and wait for its end."""
        # The holder of the lock in its pipe directory: drivers of branch 535 write no pid file.
        pid = file_lock.holder(self.daemon_directory() / "control_lock")
        if pid is None:
            raise SuiteError("there is no MPS control daemon to kill")
        with ProcessHandle.open(pid) as daemon:
            daemon.signal(signal.SIGKILL)
            ended(daemon, _DIES)
        self.say(f"the MPS control daemon is killed{self._stage.screen.pid(pid)}")

    def daemon_directory(self) -> Path:
        """Return the pipe directory of the MPS control daemon itself."""
        return self.target.pipe_directory


class StockPlace(Place):
    """Stock MPS."""


class GuardedPlace(Place):
    """The guard in place of the MPS control daemon."""

    def __init__(self, guard: Guard, clients: Clients, stage: "Stage") -> None:
        super().__init__("guard", guard, clients, stage)
        self.guard = guard
        # The suite's configuration puts the run directory next to the pipe directory.
        self._root = guard.pipe_directory.parent
        self.ctl = Ctl(self._root / "run")

    def daemon_directory(self) -> Path:
        """Return the lane's private pipe directory."""
        return Path(self.guard.lane()[0].pipe_directory)

    def parked(self, wanted: int) -> int:
        """Wait until the guard reports ``wanted`` parked clients; return the last reported number."""
        due = time.monotonic() + _PARKS
        while (parked := int(self.ctl.domain()["parked"])) < wanted and time.monotonic() < due:
            time.sleep(_POLL)  # no event reports this, so the guard is polled
        return parked

    def standby_ready(self, session: str) -> None:
        """Wait until a standby of that session is ready; raise TimeoutError."""
        due = time.monotonic() + PATIENCE
        while not self.guard.ready_standbys(session):
            if time.monotonic() > due:
                raise TimeoutError(f"no standby was ready within {PATIENCE:g} s")
            time.sleep(_POLL)

    def takeovers(self) -> list[str]:
        """Wait until the guard reports a failover; return outcome and lanes of each one reported."""
        due = time.monotonic() + PATIENCE
        while not (found := self.guard.takeovers()) and time.monotonic() < due:
            time.sleep(_POLL)
        return [f"{each['outcome']}, {each.get('lane')} to {each.get('to')}" for each in found]

    def watched(self, pid: int) -> None:
        """Wait until the guard has a client's address space; raise TimeoutError."""
        due = time.monotonic() + PATIENCE
        while not any(each["pid"] == pid and each["watched"] for each in self.ctl.clients()["watches"]):
            if time.monotonic() > due:
                raise TimeoutError(f"client {pid} was not watched within {PATIENCE:g} s")
            time.sleep(_POLL)

    def culprit(self) -> tuple[int | None, str]:
        """Wait for an incident; return the pid of the latest one's culprit, None if it has none, and how sure it is."""
        due = time.monotonic() + PATIENCE
        while not (found := self.ctl.incidents()) and time.monotonic() < due:
            time.sleep(_POLL)
        if not found:
            return None, "no incident"
        culprit = found[0]["culprit"]
        return (None if culprit is None else int(culprit["pid"])), str(found[0]["confidence"])

    def survives(self, pid: int) -> str:
        """Wait until the guard knows whether a client would live through an SM fault; return what it says."""
        due = time.monotonic() + PATIENCE
        while (said := self._survival(pid)) == "unknown" and time.monotonic() < due:
            time.sleep(_POLL)
        return said

    def _survival(self, pid: int) -> str:
        shown = self.ctl.clients()
        for client, survival in zip(shown["clients"], shown["survival"], strict=True):
            if client["process"]["pid"] == pid and survival is not None:
                return str(survival["survives"])
        return "unknown"

    def went_over(self, pid: int) -> str:
        """Wait until the guard says that a client went over; return from where to where."""
        due = time.monotonic() + PATIENCE
        while time.monotonic() < due:
            for client in self.ctl.clients()["clients"]:
                if client["process"]["pid"] == pid and client["went_over_at"] is not None:
                    return f"{client['lane_before']} to {client['lane']}"
            time.sleep(_POLL)
        return "unknown to the guard"

    def show(self, *arguments: str) -> None:
        """Run `mpsguard-ctl` and show its output."""
        printed = self.ctl.run(*arguments)
        lane, _ = self.guard.lane()
        pids = [client.process.pid for client in self.guard.clients()]
        pids += [server.process.pid for server in lane.servers] + ([lane.control.pid] if lane.control else [])
        self._stage.screen.command(f"mpsguard-ctl {' '.join(arguments)}", printed.text, pids, str(self._root))


@dataclass(frozen=True)
class Stage:
    """What a scene is given."""

    bench: Bench
    programs: DemoPrograms
    screen: Screen

    @contextmanager
    def stock(self) -> Iterator[StockPlace]:
        """Start a fresh stock daemon."""
        with self.bench.stock() as daemon, Clients() as clients:
            yield StockPlace("stock", daemon, clients, self)

    @contextmanager
    def guarded(self, options: Options | None = None) -> Iterator[GuardedPlace]:
        """Start a fresh guard with fresh lanes; the tour holds its public sockets, as systemd does."""
        with self.bench.guard(held_sockets=True, options=options) as guard, Clients() as clients:
            yield GuardedPlace(guard, clients, self)


@dataclass(frozen=True)
class Scene:
    """One scene: its name, its announcement, and how it is played on each side."""

    name: str
    announcement: str
    stock: Callable[[StockPlace], Cell] | None
    """None if there is nothing to observe on stock MPS."""
    guarded: Callable[[GuardedPlace], Cell]
    options: Options | None = None
    """Options of the guard, if the scene needs other than the defaults."""
    only_simulated: str | None = None
    """Why it is left out on a GPU, and what shows the same there."""
