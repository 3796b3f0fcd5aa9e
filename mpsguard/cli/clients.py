"""`mpsguard-ctl clients`: the clients on the GPU."""

import click

from mpsguard.cli.client_cells import class_cells, container, lane_cell, memory_cell, pod_cell, survival_cell
from mpsguard.cli.session import CliSession, with_session
from mpsguard.cli.tables import show_table
from mpsguard.guard.control_api.messages.clients import ClientList, ClientsArguments
from mpsguard.linux.times import age


@click.command()
@click.option("--domain", help="Only this domain's.")
@with_session
def clients(session: CliSession, domain: str | None) -> None:
    """List the clients: processes that came through a public pipe directory and are alive."""
    result = session.ask("clients", ClientsArguments(domain), ClientList)
    if session.as_json:
        session.print_json(result)
        return
    given = ("CLASS", "SHARE", "PRIORITY", "LIMIT", "MEMORY")
    show_table(
        session.console,
        (
            "PID",
            "UID",
            *given,
            "DOMAIN",
            "LANE",
            "AGE",
            "SEEN",
            "WATCHED",
            "SURVIVES",
            "GPUS",
            "CONTAINER",
            "POD",
            "COMMAND",
        ),
        [
            (
                client.process.pid,
                client.uid,
                *class_cells(client),
                memory_cell(result.memory_of(number)),
                client.domain,
                lane_cell(client),
                age(client.connected_at),
                "adopted" if client.adopted else "unbrokered" if client.unbrokered else "came",
                watch.state.value,
                survival_cell(result.survival_of(number)),
                client.gpus or "-",
                container(client),
                pod_cell(result.pod_of(number)),
                client.command,
            )
            for number, (client, watch) in enumerate(zip(result.clients, result.watches, strict=True))
        ],
        optional=(
            "GPUS",
            "CONTAINER",
            "SEEN",
            "DOMAIN",
            "UID",
            "MEMORY",
            "LIMIT",
            "PRIORITY",
            "SHARE",
            "CLASS",
            "POD",
            "SURVIVES",
        ),
        cut="COMMAND",
    )
    for client in result.clients:
        if client.went_over_at is not None:
            went = f"{client.process.pid} went over from {client.lane_before} to {client.lane}"
            session.console.print(f"{went} {age(client.went_over_at)} ago", markup=False)
    for watch in result.watches:
        if watch.unwatchable:
            session.console.print(f"{watch.pid} cannot be watched: {watch.reason}", markup=False)
