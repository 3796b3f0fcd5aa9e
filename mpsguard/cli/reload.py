"""`mpsguard-ctl reload`: the configuration is read again."""

import click

from mpsguard.cli.session import CliSession, with_session
from mpsguard.guard.control_api.messages.guard import Reloaded
from mpsguard.guard.control_api.protocol import NoArguments


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
