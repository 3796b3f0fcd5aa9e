"""`mpsguard-ctl clients`: who is on the GPU."""

import click
import msgspec

from mpsguard.cli.session import Session, with_session
from mpsguard.cli.tables import age, table
from mpsguard.daemon.api import Handler
from mpsguard.daemon.guard import Guard
from mpsguard.model import Client


class Arguments(msgspec.Struct):
    """Which clients."""

    domain: str | None = None


class ClientList(msgspec.Struct, frozen=True):
    """The clients alive, oldest first."""

    clients: tuple[Client, ...]


async def serve(guard: Guard, arguments: Arguments) -> ClientList:
    """The server half."""
    domains = guard.domains.values() if arguments.domain is None else [guard.domain(arguments.domain)]
    return ClientList(tuple(client for domain in domains for client in domain.clients.all()))


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
    session.console.print(
        table(
            ("PID", "UID", "DOMAIN", "LANE", "AGE", "SEEN", "GPUS", "CONTAINER", "COMMAND"),
            [
                (
                    client.process.pid,
                    client.uid,
                    client.domain,
                    client.lane,
                    age(client.connected_at),
                    "adopted" if client.adopted else "came",
                    client.gpus or "-",
                    (client.container or "-")[:12],
                    client.command,
                )
                for client in result.clients
            ],
        )
    )
