"""A scripted guard: the real control API over answers that are made up, for what asks it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from mpsguard.guard.control_api.health import Health
from mpsguard.guard.control_api.messages.clients import ClientList, ClientMemory, ClientsArguments, Watch
from mpsguard.guard.control_api.messages.guard import DomainStatus, Status
from mpsguard.guard.control_api.messages.incidents import IncidentList, IncidentsArguments
from mpsguard.guard.control_api.protocol import NoArguments
from mpsguard.guard.control_api.server import Api, Handler
from mpsguard.guard.model import Watched
from tests.unit.guard.report.overviews import AT, EXAMPLE

_UNTIL: Final = 30.0
"""Seconds for the thread to begin."""


def answers() -> dict[str, tuple[type[msgspec.Struct], msgspec.Struct]]:
    """The example of the page, of now, as the control API gives it."""
    # Ages stay what they are in the example.
    later = time.time() - AT
    active, standby = EXAMPLE.lanes
    domain = DomainStatus(
        name="default",
        pipe_directory="/run/nvidia-mps",
        gpus=("all",),
        multiuser=True,
        lane=msgspec.structs.replace(active.report, since=active.report.since + later),
        spare=msgspec.structs.replace(standby.report, since=standby.report.since + later),
        clients=active.clients,
        parked=0,
        sockets_held=True,
        impersonates=True,
    )
    found = tuple(
        msgspec.structs.replace(view.client, connected_at=view.client.connected_at + later) for view in EXAMPLE.clients
    )
    watches = tuple(
        Watch(view.client.process.pid, view.watched is Watched.YES, view.watch_reason) for view in EXAMPLE.clients
    )
    memory = tuple(None if view.memory is None else ClientMemory(view.memory) for view in EXAMPLE.clients)
    happened = tuple(msgspec.structs.replace(each, began=each.began + later) for each in EXAMPLE.incidents)
    said = Status(
        EXAMPLE.version, EXAMPLE.started_at + later, Health(EXAMPLE.health), EXAMPLE.problems, (), (domain,), ()
    )
    return {
        "status": (NoArguments, said),
        "clients": (ClientsArguments, ClientList(found, watches, memory=memory)),
        "incidents": (IncidentsArguments, IncidentList(happened)),
    }


@contextmanager
def scripted_guard(run_directory: str, handlers: Mapping[str, Handler[None, Any]] | None = None) -> Iterator[None]:
    """Answer in ``run_directory`` while the context lasts, on a thread; by default as the example of the page."""
    loop = asyncio.new_event_loop()
    stop, begun = asyncio.Event(), threading.Event()

    async def serve() -> None:
        api: Api[None] = Api(None, _handlers() if handlers is None else handlers, run_directory)
        api.open(None)
        begun.set()
        answering = asyncio.create_task(api.run())
        await stop.wait()
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        await api.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert begun.wait(_UNTIL)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(_UNTIL)
        loop.close()


def _handlers() -> Mapping[str, Handler[None, Any]]:
    def handler(name: str, arguments: type[msgspec.Struct]) -> Handler[None, Any]:
        async def serve(_: None, __: Any) -> msgspec.Struct:
            # Made anew: ages are counted from now.
            return answers()[name][1]

        return Handler(name, arguments, serve)

    return {name: handler(name, arguments) for name, (arguments, _) in answers().items()}
