"""`mpsguard-ctl metrics`: what Prometheus would scrape, for a textfile collector or a look."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from mpsguard.cli.session import Session, with_session
from mpsguard.control_api.handler import Handler

if TYPE_CHECKING:
    from mpsguard.daemon.guard import Guard


class Arguments(msgspec.Struct):
    """None."""


class Exposition(msgspec.Struct, frozen=True):
    """Metrics in Prometheus' text format."""

    text: str


async def serve(guard: Guard, _: Arguments) -> Exposition:
    """The server half."""
    return Exposition(guard.metrics.exposition())


HANDLER = Handler("metrics", Arguments, serve)


@click.command()
@with_session
def metrics(session: Session) -> None:
    """Print the guard's metrics in Prometheus' text format."""
    result = session.ask("metrics", Arguments(), Exposition)
    if session.as_json:
        session.print_json(result)
    else:
        click.echo(result.text, nl=False)
