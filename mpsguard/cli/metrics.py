"""`mpsguard-ctl metrics`: what Prometheus would scrape, for a textfile collector or a look."""

import click

from mpsguard.cli.session import CliSession, with_session
from mpsguard.guard.control_api.messages.guard import Exposition
from mpsguard.guard.control_api.protocol import NoArguments


@click.command()
@with_session
def metrics(session: CliSession) -> None:
    """Print the guard's metrics in Prometheus' text format."""
    result = session.ask("metrics", NoArguments(), Exposition)
    if session.as_json:
        session.print_json(result)
    else:
        click.echo(result.text, nl=False)
