"""`mpsguard-ctl image verify`: every byte of images, compared with its digest."""

from pathlib import Path

import click
import msgspec

from mpsguard.cli.image_commands.store_option import ImageExit, opened, with_store
from mpsguard.cli.progress import progress_bar
from mpsguard.cli.session import CliSession
from mpsguard.images.store.errors import BadManifestError, DamagedError
from mpsguard.images.store.image import Damage
from mpsguard.images.store.store import ImageStore


class VerifiedImage(msgspec.Struct, frozen=True):
    """What was found in an image."""

    name: str
    bytes: int
    """Of the pieces that were read."""
    damages: tuple[Damage, ...]
    error: str | None = None
    """Why its manifest cannot be read."""


class Verification(msgspec.Struct, frozen=True):
    """What was found in all of them."""

    images: tuple[VerifiedImage, ...]


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@with_store
def verify(session: CliSession, store: Path | None, names: tuple[str, ...]) -> None:
    """Read the images NAME, or all, and compare every byte with what was stored.

    A piece that is damaged is written again by the next image that has it.
    """
    with opened(session, store) as images:
        found = Verification(tuple(_verified(session, images, name) for name in names or images.names()))
    bad = [image for image in found.images if image.damages or image.error]
    if session.as_json:
        session.print_json(found)
    else:
        for image in found.images:
            _print(session, image)
    if bad:
        raise SystemExit(ImageExit.DAMAGED)


def _verified(session: CliSession, store: ImageStore, name: str) -> VerifiedImage:
    try:
        image = store.open(name)
    except (BadManifestError, DamagedError) as error:
        return VerifiedImage(name, 0, (), str(error))
    with image, progress_bar(session, f"verify {name}") as bar:
        total = sum(image.manifest.pieces().values())
        bar.expect(total)
        return VerifiedImage(name, total, tuple(image.verify(bar.advance)))


def _print(session: CliSession, image: VerifiedImage) -> None:
    if image.error is not None:
        session.console.print(image.error, markup=False)
    for damage in image.damages:
        text = f"image {image.name}: piece {damage.digest} of region {damage.region} {damage.reason}"
        session.console.print(text, markup=False)
    if image.error is None and not image.damages:
        session.console.print(f"image {image.name}: {image.bytes} bytes, all as they were stored", markup=False)
