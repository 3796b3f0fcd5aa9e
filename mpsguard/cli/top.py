"""`mpsguard-ctl top`: lanes, clients and incidents on one screen, as they change."""

import sys

import click

from mpsguard.cli.session import CliSession, Exit, with_session
from mpsguard.linux.extras import how_to_install


@click.command()
@click.option("--domain", help="Only this domain's clients.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between two looks at the guard.",
)
@with_session
def top(session: CliSession, domain: str | None, interval: float) -> None:
    """Watch lanes, clients and incidents on one screen; keys: q quit, t terminate a client, p pause, Tab next table.

    Needs Textual: pip install 'mpsguard[top]'.
    """
    try:
        from mpsguard.cli.dashboard.app import Dashboard  # noqa: PLC0415  # an extra that may be missing
    except ModuleNotFoundError as error:
        session.fail(Exit.FAILED, f"top needs Textual ({error.name} is missing): {how_to_install('top')}")
    if session.as_json:
        session.fail(Exit.USAGE, "top draws a screen; for JSON there are status, clients and incidents")
    if not sys.stdout.isatty():
        session.fail(Exit.USAGE, "top draws a screen, and standard output is no terminal")
    Dashboard(session.run_directory, domain, interval, session.deadline).run()
