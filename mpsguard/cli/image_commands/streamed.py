"""`mpsguard-ctl image pull` and `push`: an image out of a stream, and as a stream."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from mpsguard.cli.image_commands import one_time_secret
from mpsguard.cli.image_commands.connection import accepted, connected, one_address
from mpsguard.cli.image_commands.one_time_secret import VARIABLE
from mpsguard.cli.image_commands.store_option import mebibytes, opened, with_store
from mpsguard.cli.listening import Address
from mpsguard.cli.progress import progress_bar
from mpsguard.cli.session import CliSession, Exit
from mpsguard.images.store import transfer
from mpsguard.images.store.pieces import Digest
from mpsguard.images.store.store_files import write_all
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


class _StandardOutput:
    """Writes at once: nothing is left to be written when the reader of a pipe has gone."""

    def write(self, data: bytes) -> None:
        """Write all of ``data``."""
        write_all(sys.stdout.fileno(), data)

    def flush(self) -> None:
        """Nothing is held back."""


@click.command()
@click.argument("name")
@click.option(
    "--have",
    multiple=True,
    metavar="OTHER",
    help="An image that the receiver has, too: what is in it is not sent. May be given several times.",
)
@click.option(
    "--to",
    callback=one_address,
    metavar="HOST:PORT",
    help="Where `image pull --listen` waits: it says what it lacks, and only that is sent.",
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"With the secret that `image pull --listen` printed. Without it: {VARIABLE}, or it is asked for.",
)
@click.option("--unprotected", is_flag=True, help="Send it over a network as it is, for anyone there to read.")
@with_store
def push(
    session: CliSession,
    *,
    store: Path | None,
    name: str,
    have: tuple[str, ...],
    to: Address | None,
    secret_file: Path | None,
    unprotected: bool,
) -> None:
    """Write the image NAME to standard output, for `image pull` on another machine.

    For example: mpsguard-ctl image push NAME | ssh HOST mpsguard-ctl image pull
    """
    if to is None and sys.stdout.isatty():
        session.fail(Exit.USAGE, "the image goes to standard output: give it a file or a pipe, or --to")
    if to is None and session.as_json:
        session.fail(Exit.USAGE, "standard output carries the image, and no JSON: leave out --json, or give --to")
    with (
        opened(session, store) as images,
        images.open(name) as image,
        _receiver(session, to, secret_file, network=unprotected) as (stream, back),
        progress_bar(session, f"push {name}") as bar,
    ):
        known: set[Digest] = set()
        for other in have:
            with images.open(other) as had:
                known.update(had.manifest.pieces())
        bar.expect(sum(image.manifest.pieces().values()))
        sent = transfer.send(image, stream, back=back, known=known, moved=bar.advance)
    if session.as_json:
        session.print_json(sent)
    else:
        click.echo(f"sent image {name}: {mebibytes(sent.bytes)} MiB; {mebibytes(sent.spared)} were there", err=True)


@contextmanager
def _receiver(
    session: CliSession, to: Address | None, secret: Path | None, *, network: bool
) -> Iterator[tuple[Writable, Readable | None]]:
    if to is None:
        yield _StandardOutput(), None
    else:
        with connected(to, session.deadline, partial(_told, session, secret), network=network) as ends:
            yield ends.outgoing, ends.incoming


def _told(session: CliSession, file: Path | None) -> str:
    secret = one_time_secret.told(file)
    if secret is None:
        session.fail(Exit.USAGE, f"`image pull --listen` printed a secret: give it by {VARIABLE} or --secret-file")
    return secret
