"""`mpsguard-ctl image remove`: images, and what no image needs."""

from pathlib import Path

import click
import msgspec

from mpsguard.cli.image_commands.store_option import exit_code, mebibytes, opened, with_store
from mpsguard.cli.session import CliSession
from mpsguard.images.store.collector import Collected
from mpsguard.images.store.errors import ImageError
from mpsguard.images.store.store import ImageStore


class Removal(msgspec.Struct, frozen=True):
    """What was removed."""

    names: tuple[str, ...]
    collected: Collected | None
    """None if that was not wanted."""


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--keep-pieces", is_flag=True, help="Free no room now: the next image may need it.")
@with_store
def remove(session: CliSession, store: Path | None, names: tuple[str, ...], keep_pieces: bool) -> None:
    """Remove the images NAME, and then what no image needs and what killed programs left.

    Without a NAME, only the latter. Programs that read or write images go on.
    """
    with opened(session, store) as images:
        # All of them are there, or none is removed.
        missing = [name for name in names if name not in images.names()]
        for name in (*missing, *names):
            images.remove(name)
        removal = Removal(names, None if keep_pieces else _collect(session, images, names))
    if session.as_json:
        session.print_json(removal)
        return
    removed = _removed(names)
    collected = removal.collected
    freed = "nothing was freed" if collected is None else f"freed {mebibytes(collected.bytes)} MiB"
    session.console.print(removed + freed, markup=False)


def _removed(names: tuple[str, ...]) -> str:
    return f"removed {', '.join(names)}; " if names else ""


def _collect(session: CliSession, images: ImageStore, names: tuple[str, ...]) -> Collected:
    """Free what no image needs. After an error the images are removed all the same, and the line says so."""
    try:
        return images.collect()
    except ImageError as error:
        session.fail(exit_code(error), f"{_removed(names)}what no image needs was not freed: {error}")
