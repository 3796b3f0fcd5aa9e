"""`mpsguard-ctl clients`: who is on the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from mpsguard.cli.session import Session, with_session
from mpsguard.cli.tables import age, show_table
from mpsguard.control_api.handler import Handler
from mpsguard.model import Client

if TYPE_CHECKING:
    from mpsguard.daemon.guard import Guard
    from mpsguard.sensors.uvm_client import Attachment


class Arguments(msgspec.Struct):
    """Which clients."""

    domain: str | None = None


class Watch(msgspec.Struct, frozen=True):
    """Whether a fault of a client would be seen in its own address space."""

    pid: int
    watched: bool
    reason: str
    """Why it is not; "" if it is."""
    unwatchable: bool = False
    """It has something that cannot be watched: not merely nothing yet."""


class ClientList(msgspec.Struct, frozen=True):
    """The clients alive, oldest first, and how each is watched, in the same order."""

    clients: tuple[Client, ...]
    watches: tuple[Watch, ...]


async def serve(guard: Guard, arguments: Arguments) -> ClientList:
    """The server half."""
    domains = guard.domains.values() if arguments.domain is None else [guard.domain(arguments.domain)]
    found = tuple(client for domain in domains for client in domain.clients.all())
    attachments = guard.investigation.sensors.attachments() if guard.investigation else {}
    return ClientList(found, tuple(_watch(client, attachments.get(client.process)) for client in found))


def _watch(client: Client, attachment: Attachment | None) -> Watch:
    if attachment is None:
        return Watch(client.process.pid, False, "unknown to the uvm sensor")
    return Watch(client.process.pid, attachment.attached, attachment.reason, attachment.unwatchable)


HANDLER = Handler("clients", Arguments, serve)


@click.command()
@click.option("--domain", help="Only this domain's.")
@with_session
def clients(session: Session, domain: str | None) -> None:
    """List the clients: processes that came through a public pipe directory and are alive."""
    result = session.ask("clients", Arguments(domain), ClientList)
    if session.as_json:
        session.print_json(result)
        return
    show_table(
        session.console,
        ("PID", "UID", "DOMAIN", "LANE", "AGE", "SEEN", "WATCHED", "GPUS", "CONTAINER", "COMMAND"),
        [
            (
                client.process.pid,
                client.uid,
                client.domain,
                client.lane,
                age(client.connected_at),
                "adopted" if client.adopted else "unbrokered" if client.unbrokered else "came",
                "yes" if watch.watched else "no",
                client.gpus or "-",
                (client.container or "-")[:12],
                client.command,
            )
            for client, watch in zip(result.clients, result.watches, strict=True)
        ],
        optional=("GPUS", "CONTAINER", "SEEN", "DOMAIN", "UID"),
        cut="COMMAND",
    )
    for watch in result.watches:
        if watch.unwatchable:
            session.console.print(f"{watch.pid} cannot be watched: {watch.reason}", markup=False)
