"""What the screen shows at one moment, asked of the guard."""

from typing import Final

import msgspec

from mpsguard.guard.control_api import async_client
from mpsguard.guard.control_api.async_client import NoAnswerError
from mpsguard.guard.control_api.messages.clients import ClientList, ClientsArguments
from mpsguard.guard.control_api.messages.guard import Status
from mpsguard.guard.control_api.messages.incidents import IncidentList, IncidentsArguments
from mpsguard.guard.control_api.protocol import NoArguments

_INCIDENTS: Final = 50
"""The newest ones; all of them are in `mpsguard-ctl incidents`."""


class Snapshot(msgspec.Struct, frozen=True):
    """The guard's answers at one moment; None, and why, where there is no guard."""

    status: Status | None = None
    clients: ClientList = ClientList((), ())
    incidents: IncidentList = IncidentList(())
    failure: str = ""


async def take(run_directory: str, domain: str | None, within: float) -> Snapshot:
    """Ask the guard, for ``within`` seconds each time; without one, the snapshot says so."""
    try:
        return Snapshot(
            await async_client.ask(run_directory, "status", NoArguments(), Status, within),
            await async_client.ask(run_directory, "clients", ClientsArguments(domain), ClientList, within),
            await async_client.ask(run_directory, "incidents", IncidentsArguments(_INCIDENTS), IncidentList, within),
        )
    except NoAnswerError as error:
        return Snapshot(failure=str(error))
