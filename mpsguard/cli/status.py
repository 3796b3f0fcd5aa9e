"""`mpsguard-ctl status`, `metrics` and `reload`: the guard itself."""

import sys

import click

from mpsguard.cli.session import CliSession, Exit, with_session
from mpsguard.cli.tables import coloured, show_table
from mpsguard.guard.control_api.health import Health
from mpsguard.guard.control_api.messages.guard import Exposition, Reloaded, Status
from mpsguard.guard.control_api.protocol import NoArguments
from mpsguard.linux.times import age

_EXITS = {Health.HEALTHY: Exit.OK, Health.DEGRADED: Exit.DEGRADED, Health.FAULT: Exit.FAULT}


@click.command()
@with_session
def status(session: CliSession) -> None:
    """Show the guard's health; exit 0 healthy, 3 degraded, 4 a lane in FAULT, 5 no guard."""
    result = session.ask("status", NoArguments(), Status)
    if session.as_json:
        session.print_json(result)
    else:
        out = session.console
        out.print("mpsguard", result.version, coloured(result.health), f"for {age(result.started_at)}")
        for problem in result.problems:
            out.print(f"  ! {problem}", markup=False)
        for note in result.notes:
            out.print(f"  · {note}", markup=False)
        show_table(
            out,
            ("DOMAIN", "STATE", "CLIENTS", "PARKED", "LANE", "CONTROL", "SERVERS", "SOCKETS", "PIPE DIRECTORY"),
            [
                (
                    domain.name,
                    lane.state.value,
                    domain.clients if lane is domain.lane else domain.spare_clients,
                    domain.parked if lane is domain.lane else "-",
                    lane.name if lane is domain.lane else f"{lane.name} (standby)",
                    lane.control.pid if lane.control else "-",
                    ",".join(str(server.process.pid) for server in lane.servers) or "-",
                    "held" if domain.sockets_held else "own",
                    domain.pipe_directory,
                )
                for domain in result.domains
                for lane in (domain.lane, domain.spare)
                if lane is not None
            ],
            optional=("SOCKETS", "CONTROL", "SERVERS"),
            cut="PIPE DIRECTORY",
        )
        for sensor in result.sensors:
            out.print(f"  {'+' if sensor.present else '-'} {sensor.name}: {sensor.detail}", markup=False)
    sys.exit(_EXITS[result.health])


@click.command()
@with_session
def metrics(session: CliSession) -> None:
    """Print the guard's metrics in Prometheus' text format."""
    result = session.ask("metrics", NoArguments(), Exposition)
    if session.as_json:
        session.print_json(result)
    else:
        click.echo(result.text, nl=False)


@click.command()
@with_session
def reload(session: CliSession) -> None:
    """Read the configuration again: all of it is in force then, or nothing was changed and exit 1.

    Nothing is changed if the file is wrong, or if a key differs that needs a restart of the guard; such keys are named.
    A restart costs no client anything.
    """
    result = session.ask("reload", NoArguments(), Reloaded)
    if session.as_json:
        session.print_json(result)
    else:
        click.echo(f"in force: {', '.join(result.keys)}" if result.keys else "nothing has changed")
