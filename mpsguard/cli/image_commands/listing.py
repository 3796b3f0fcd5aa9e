"""`mpsguard-ctl image list`: the images of a store."""

from pathlib import Path

import click
import msgspec

from mpsguard.cli.image_commands.store_option import directory_of, is_absent, mebibytes, opened, with_store
from mpsguard.cli.session import CliSession
from mpsguard.cli.tables import show_table
from mpsguard.images.pool.connection import PoolConnection
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.image_memory import key_of
from mpsguard.images.store.errors import ImageError
from mpsguard.images.store.store import ImageStore
from mpsguard.linux.times import clock


class ListedImage(msgspec.Struct, frozen=True):
    """An image in the list."""

    name: str
    error: str | None = None
    """Why it cannot be read; then the rest is missing."""
    session: str | None = None
    created: float | None = None
    """UNIX time in seconds."""
    program: str | None = None
    host: str | None = None
    regions: int = 0
    tensors: int = 0
    bytes: int = 0
    """Of all regions."""
    tiers: tuple[str, ...] = ()
    """Where it is besides the disk: "gpu", "host", in the memory of this user's pool."""


class ImageList(msgspec.Struct, frozen=True):
    """All images of a store."""

    directory: str
    images: tuple[ListedImage, ...]


@click.command("list")
@with_store
def list_images(session: CliSession, store: Path | None) -> None:
    """List the images."""
    directory = directory_of(session, store)
    # The default one is made with its first image; one that is named is a mistake if it is not there.
    if store is None and is_absent(directory):
        found = ImageList(str(directory), ())
    else:
        with opened(session, directory) as images:
            held = _held()
            found = ImageList(str(directory), tuple(_listed(images, name, held) for name in images.names()))
    if session.as_json:
        session.print_json(found)
        return
    show_table(
        session.console,
        ("IMAGE", "SESSION", "CREATED", "REGIONS", "TENSORS", "MIB", "IN", "MADE BY"),
        [_row(each) for each in found.images],
        optional=("MADE BY", "SESSION"),
        cut="IMAGE",
    )


def _held() -> dict[str, tuple[str, ...]]:
    """Return the tiers of each image in the pool's memory, by key; without a pool there are none."""
    try:
        with PoolConnection() as pool:
            images = [image for image in pool.listing().images if image.whole]
    except PoolError:
        return {}
    return {each.key: tuple(sorted(image.tier for image in images if image.key == each.key)) for each in images}


def _listed(store: ImageStore, name: str, held: dict[str, tuple[str, ...]]) -> ListedImage:
    try:
        with store.open(name) as image:
            manifest = image.manifest
    except ImageError as error:
        return ListedImage(name, str(error))
    return ListedImage(
        name,
        None,
        manifest.session,
        manifest.created,
        manifest.maker.program,
        manifest.maker.host,
        len(manifest.regions),
        len(manifest.tensors),
        manifest.size,
        held.get(key_of(manifest), ()) if held else (),
    )


def _row(image: ListedImage) -> tuple[object, ...]:
    if image.error is not None or image.created is None:
        return (image.name, "-", "cannot be read", "-", "-", "-", "-", "-")
    return (
        image.name,
        image.session,
        clock(image.created),
        image.regions,
        image.tensors,
        mebibytes(image.bytes),
        " ".join((*image.tiers, "disk")),
        f"{image.program} on {image.host}",
    )
