"""`mpsguard-ctl image pull`: an image out of a stream."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from mpsguard.cli.image_commands.connection import accepted, one_address
from mpsguard.cli.image_commands.store_option import mebibytes, opened, with_store
from mpsguard.cli.listening import Address
from mpsguard.cli.progress import progress_bar
from mpsguard.cli.session import CliSession, Exit
from mpsguard.images.store import transfer
from mpsguard.images.store.stream_frames import Readable, Writable


@click.command()
@click.argument("name", required=False)
@click.option(
    "--listen",
    callback=one_address,
    metavar="HOST:PORT",
    help="Wait there for one `image push --to` that has the secret which is printed; port 0 takes a free one.",
)
@click.option(
    "--wait",
    type=click.FloatRange(0.1, 86400),
    default=600.0,
    show_default=True,
    help="Seconds to wait for it.",
)
@click.option("--unprotected", is_flag=True, help="Listen where others reach it, who can read and change what comes.")
@click.option("--replace", is_flag=True, help="Put it in the place of an image of that name.")
@with_store
def pull(
    session: CliSession,
    *,
    store: Path | None,
    name: str | None,
    listen: Address | None,
    wait: float,
    unprotected: bool,
    replace: bool,
) -> None:
    """Read an image from standard input, as `image push` writes it, under its own name or NAME.

    If it breaks off, what came stays until the next `image remove`, and a second try needs the rest alone.
    """
    if listen is None and sys.stdin.isatty():
        session.fail(Exit.USAGE, "the image comes from standard input: give it a file or a pipe, or --listen")
    with (
        opened(session, store, make=True) as images,
        _sender(listen, wait, network=unprotected) as (stream, back),
        progress_bar(session, "pull") as bar,
    ):
        done = transfer.receive(
            images,
            stream,
            back=back,
            name=name,
            replace=replace,
            begun=lambda manifest: bar.expect(sum(manifest.pieces().values())),
            moved=bar.advance,
        )
    if session.as_json:
        session.print_json(done)
        return
    session.console.print(
        f"image {done.name}: {mebibytes(done.bytes)} MiB came; {mebibytes(done.spared)} were here", markup=False
    )


@contextmanager
def _sender(listen: Address | None, wait: float, *, network: bool) -> Iterator[tuple[Readable, Writable | None]]:
    if listen is None:
        yield sys.stdin.buffer, None
    else:
        with accepted(listen, wait, network=network) as ends:
            yield ends.incoming, ends.outgoing
