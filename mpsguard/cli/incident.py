"""`mpsguard-ctl incident`: one incident, told, exported or drawn."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from mpsguard.cli.session import Exit, Session, with_session
from mpsguard.control_api.handler import Handler
from mpsguard.control_api.protocol import RequestError
from mpsguard.journal.records import Bundle, JournalError, RecordedIncident
from mpsguard.report import page, text
from mpsguard.report.report_model import ReportModel, build_report
from mpsguard.triage import catalog

if TYPE_CHECKING:
    from mpsguard.daemon.guard import Guard
    from mpsguard.journal.journal import Journal

T = TypeVar("T")

LATEST = "latest"
_LOOKED_AT = 1000
"""The newest incidents among which a part of an id is looked for; a whole id is found however old."""

_STANDARD_OUTPUT = Path("-")

_id = click.argument("name", metavar="ID")


class Arguments(msgspec.Struct):
    """Which one."""

    id: str


async def serve(guard: Guard, arguments: Arguments) -> RecordedIncident:
    """The server half of `show` and `report`."""
    name = await _resolve(guard.journal, arguments.id)
    return await _found(guard.journal.get(name), name)


async def serve_export(guard: Guard, arguments: Arguments) -> Bundle:
    """The server half of `export`."""
    name = await _resolve(guard.journal, arguments.id)
    return await _found(guard.journal.export(name), name)


async def _resolve(journal: Journal, name: str) -> str:
    """Return the whole id for one of `LATEST`, a whole id, or its beginning or end if only one id has that."""
    try:
        known = [summary.id for summary in await journal.list(_LOOKED_AT)]
    except JournalError as error:
        raise RequestError("failed", str(error)) from None
    if name == LATEST and known:
        return known[0]
    if name in known or not name:
        return name
    meant = [each for each in known if each.startswith(name) or each.endswith(name)]
    if len(meant) > 1:
        raise RequestError(
            "arguments", f"{name[:64]!r} is the beginning or end of {len(meant)} ids: {', '.join(meant[:4])}"
        )
    return meant[0] if meant else name


async def _found(look: Awaitable[T], name: str) -> T:
    try:
        return await look
    except KeyError:
        raise RequestError("failed", f"no incident {name[:64]!r}; `incidents` lists those there are") from None
    except JournalError as error:
        raise RequestError("failed", str(error)) from None


HANDLER: Handler[Guard, Arguments] = Handler("incident", Arguments, serve)
EXPORT_HANDLER: Handler[Guard, Arguments] = Handler("incident_export", Arguments, serve_export)


@click.group()
def incident() -> None:
    """Look at one incident: read it, take it elsewhere, or draw it.

    ID is that of `mpsguard-ctl incidents`, its beginning or end if no other has that, or `latest`.
    """


@incident.command()
@_id
@with_session
def show(session: Session, name: str) -> None:
    """Tell incident ID: the verdict, then the timeline in milliseconds, then what to do."""
    record = session.ask("incident", Arguments(name), RecordedIncident)
    if session.as_json:
        session.print_json(record)
    else:
        click.echo(text.render(_told(record)), nl=False)


@incident.command()
@_id
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="Where to; standard output without, and for -."
)
@with_session
def export(session: Session, name: str, output: Path | None) -> None:
    """Write incident ID as a JSON bundle: the verdict, and all evidence that triage needs to come to it again."""
    bundle = session.ask("incident_export", Arguments(name), Bundle)
    if output is None:
        session.print_json(bundle)
    else:
        _write(session, bundle.record.id, output, msgspec.json.format(msgspec.json.encode(bundle), indent=1) + b"\n")


@incident.command()
@_id
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The HTML file; - for standard output.",
)
@with_session
def report(session: Session, name: str, output: Path) -> None:
    """Write incident ID as one HTML file with the timeline drawn; it needs no network and runs no script."""
    record = session.ask("incident", Arguments(name), RecordedIncident)
    _write(session, record.id, output, page.render(_told(record)).encode())


def _told(record: RecordedIncident) -> ReportModel:
    return build_report(record, {number: catalog.lookup(number).advice for number in record.incident.xids})


def _write(session: Session, name: str, path: Path, content: bytes) -> None:
    """Write a whole file, or leave the one that was there; for its owner only, as command lines are in it."""
    if path == _STANDARD_OUTPUT:
        sys.stdout.buffer.write(content)
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:  # noqa: PTH123
            file.write(content)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        session.fail(Exit.FAILED, f"{path}: {error.strerror}")
    _done(session, name, path)


def _done(session: Session, name: str, path: Path) -> None:
    if session.as_json:
        session.print_json({"id": name, "output": str(path)})
    else:
        click.echo(f"incident {name} written to {path}")
