"""`mpsguard-ctl clients`: the clients on the GPU."""

import click

from mpsguard.cli.client_cells import class_cells, container, pod_cell
from mpsguard.cli.session import CliSession, with_session
from mpsguard.cli.tables import show_table
from mpsguard.control_api.messages.clients import Arguments, ClientList
from mpsguard.times import age


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
        ("PID", "UID", *given, "DOMAIN", "LANE", "AGE", "SEEN", "WATCHED", "GPUS", "CONTAINER", "POD", "COMMAND"),
        [
            (
                client.process.pid,
                client.uid,
                *class_cells(client),
                client.domain,
                client.lane,
                age(client.connected_at),
                "adopted" if client.adopted else "unbrokered" if client.unbrokered else "came",
                "yes" if watch.watched else "no",
                client.gpus or "-",
                container(client),
                pod_cell(result.pod_of(number)),
                client.command,
            )
            for number, (client, watch) in enumerate(zip(result.clients, result.watches, strict=True))
        ],
        optional=("GPUS", "CONTAINER", "SEEN", "DOMAIN", "UID", "LIMIT", "PRIORITY", "SHARE", "CLASS", "POD"),
        cut="COMMAND",
    )
    for watch in result.watches:
        if watch.unwatchable:
            session.console.print(f"{watch.pid} cannot be watched: {watch.reason}", markup=False)
