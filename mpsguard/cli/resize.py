"""`mpsguard-ctl resize`: give a running session another share of the SMs."""

import click

from mpsguard.cli.session import CliSession, with_session
from mpsguard.guard.control_api.messages.vault import ResizeArguments, Resized

_START = 300.0
"""Seconds that a standby may take to start: PyTorch from a cold disk, a large model."""


@click.command()
@click.argument("name", metavar="SESSION")
@click.option(
    "--share",
    type=click.FloatRange(0.1, 100),
    required=True,
    help="Percent of the SMs.",
    metavar="PERCENT",
)
@click.option("--uid", type=click.IntRange(0), help="The session's user, if several have one of that name.")
@click.option(
    "--wait",
    type=click.FloatRange(0, min_open=True),
    default=_START,
    show_default=True,
    metavar="SECONDS",
    help="How long its next standby may take to start.",
)
@with_session
def resize(session: CliSession, name: str, share: float, uid: int | None, wait: float) -> None:
    """Give a running session another share of the SMs, without losing anything.

    The session needs a standby (mpsguard run --standby 1) and a domain with service classes. Its standby is replaced by
    one that starts with the new share, which then takes over. The share holds for what follows, too; it cannot be
    larger than that of the session's class.
    """
    result = session.ask("resize", ResizeArguments(name, share, uid), Resized, after=wait)
    if session.as_json:
        session.print_json(result)
        return
    before = "" if result.before is None else f", before {result.before:g} %"
    session.console.print(
        f"{result.session} goes on in process {result.pid} with {result.share:g} % of the SMs{before}", markup=False
    )
