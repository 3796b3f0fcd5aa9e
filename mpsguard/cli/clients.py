"""`mpsguard-ctl clients`: the clients on the GPU."""

import click

from mpsguard.cli.session import CliSession, with_session
from mpsguard.cli.tables import age, show_table
from mpsguard.control_api.messages.clients import Arguments, ClientList
from mpsguard.model import Client

_PRIORITIES = ("normal", "below normal")


@click.command()
@click.option("--domain", help="Only this domain's.")
@with_session
def clients(session: CliSession, domain: str | None) -> None:
    """List the clients: processes that came through a public pipe directory and are alive."""
    result = session.ask("clients", Arguments(domain), ClientList)
    if session.as_json:
        session.print_json(result)
        return
    given = ("CLASS", "SHARE", "PRIORITY", "LIMIT")
    show_table(
        session.console,
        ("PID", "UID", *given, "DOMAIN", "LANE", "AGE", "SEEN", "WATCHED", "GPUS", "CONTAINER", "COMMAND"),
        [
            (
                client.process.pid,
                client.uid,
                *_given(client),
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
        optional=("GPUS", "CONTAINER", "SEEN", "DOMAIN", "UID", "LIMIT", "PRIORITY", "SHARE", "CLASS"),
        cut="COMMAND",
    )
    for watch in result.watches:
        if watch.unwatchable:
            session.console.print(f"{watch.pid} cannot be watched: {watch.reason}", markup=False)


def _given(client: Client) -> tuple[str, str, str, str]:
    """What its service class gives a client: name, share, priority, limits of memory."""
    return (
        client.service_class or "-",
        "-" if client.sm_share is None else f"{client.sm_share:g} %",
        "-" if client.priority is None else _PRIORITIES[client.priority],
        ", ".join(client.memory_limits) or "-",
    )
