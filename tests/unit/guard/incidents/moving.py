"""Programs that say of moves what a test has them say, at a domain of two lanes without daemons."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from mpsguard.guard.broker import move_page
from mpsguard.guard.broker.lowered_shares import ClassCeilings, ProgramShares
from mpsguard.guard.config import DomainConfig
from mpsguard.guard.control_api.messages.clients import ClientMoved
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.incidents.second_driver_watch import SecondDriverWatch
from mpsguard.guard.lanes.lane_set import LaneSet
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.guard.model import Client
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.identity import ProcessKey
from tests.harness.waiting import until
from tests.unit.guard.broker.test_second_drivers import Place

SAYS = """
import json, sys
from fault_injection.sim.second_driver import SimulatedSecondDriver
from mpsguard.preload.second_claim import ClaimPhase
from mpsguard.preload.second_move import MoveAnswer, MoveState
driver = SimulatedSecondDriver("cold", "", 1)
for line in sys.stdin:
    said = json.loads(line) if line.strip() else {}
    driver._token = said.get("word", driver._token)
    if said.get("moved"):
        driver._go_on(ClaimPhase.MOVED)
    driver._answer(MoveState(said.get("number", 0), MoveAnswer(said.get("answer", 0))))
    print(flush=True)
"""
"""A program with a zone table, and no driver at all."""
PROGRAM = (sys.executable, "-c", SAYS)


class Moving:
    """A domain with clients that can be asked to move, and the page of requests."""

    def __init__(self, place: Place, path: Path) -> None:
        self.place = place
        self._path = path
        self.watch = self._made()
        self.clients: list[ProcessKey] = []

    def _made(self) -> SecondDriverWatch:
        place = self.place
        lanes = LaneSet(cast("Any", [place.first, place.second]), self._path / "active")
        view = DomainView(DomainConfig(name="d", standby=True), place.table, lanes, place.culprits)
        made = SecondDriverWatch(
            view,
            ProgramShares(self._path / "shares"),
            ClassCeilings(),
            self._path / "second",
            events=place.events,
            metrics=Metrics(),
        )
        with Directory.make(self._path / "directory", 0o711) as directory:
            made.moves.page.made(directory)
        made.open(cast("Any", Deaf()))
        return made

    async def restart(self) -> None:
        """Have the next guard take over."""
        await self.watch.close()
        known = self.place.table.all()
        self.watch = self._made()
        for client in known:
            self.place.table.replace(self.watch.drivers.recalled(client))
        self.watch.drivers.settled()
        for client in self.place.table.all():
            self._came(client)

    async def client(self) -> ProcessKey:
        """Start a program that can move."""
        process = self.place.client(program=PROGRAM, mode="cold")
        self.clients.append(process)
        self._came(self.place.now(process))
        await until(lambda: self.watch.claim(process))
        return process

    def _came(self, client: Client) -> None:
        handle = self.place.table.handle(client.process)
        assert handle is not None
        with handle:
            self.watch.client_came(client, handle)

    def say(self, process: ProcessKey, **said: object) -> None:
        """Have a program say something."""
        (program,) = [each for each in self.place.processes if each.pid == process.pid]
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(f"{json.dumps(said)}\n".encode())
        program.stdout.read(1)

    def word(self, process: ProcessKey) -> int:
        """The word by which a program would be asked."""
        assert self.watch._claims is not None
        return self.watch._claims.token_of(process)

    def asked(self) -> list[tuple[int, ...]]:
        """What all programs read: word, number, share, flags of each request."""
        page = (self._path / "directory" / move_page.NAME).read_bytes()
        return [slot for slot in move_page.SLOT.iter_unpack(page) if slot[0]]

    def begin(self, process: ProcessKey, share: float = 20.0) -> asyncio.Task[ClientMoved]:
        """Ask a program to go on with another share."""
        return asyncio.create_task(self.watch.moves.move(process.pid, None, share, let_go=False))

    async def broken_off(self, moving: asyncio.Task[ClientMoved]) -> None:
        """End what waits for a move."""
        moving.cancel()
        await asyncio.wait([moving])

    def told(self, kind: str) -> list[dict[str, Any]]:
        """Data of the events of a kind."""
        return [dict(event.data) for event in self.place.events.recent() if event.kind == kind]


class Deaf:
    """Sensors that take no notice."""

    def told(self, _: object) -> None:
        """See `SensorHub`."""


def run(path: Path, body: Callable[[Moving], Awaitable[None]]) -> None:
    """Run a test in an event loop."""

    async def whole() -> None:
        place = Place(path)
        moving = Moving(place, path)
        try:
            await body(moving)
        finally:
            await moving.watch.close()
            place.close()

    asyncio.run(whole())
