"""`mpsguard-ctl image list`, `show`, `verify` and `remove`: the images of a store."""

from pathlib import Path

import click
import msgspec

from mpsguard.cli.image_commands.store_option import (
    ImageExit,
    directory_of,
    exit_code,
    is_absent,
    mebibytes,
    opened,
    with_store,
)
from mpsguard.cli.progress import progress_bar
from mpsguard.cli.session import CliSession
from mpsguard.cli.tables import show_table
from mpsguard.images.pool.connection import PoolConnection
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.image_memory import key_of
from mpsguard.images.store.collector import Collected
from mpsguard.images.store.errors import BadManifestError, DamagedError, ImageError
from mpsguard.images.store.image import Damage
from mpsguard.images.store.manifest import Maker, Manifest, RegionImage, TensorImage
from mpsguard.images.store.store import ImageStore
from mpsguard.linux.processes.procfs import printable
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


class ShownRegion(msgspec.Struct, frozen=True):
    """A region of an image."""

    name: str
    bytes: int
    chunks: int
    """Of the region in the vault."""
    sealed: int
    """How many of them are sealed."""
    pieces: int
    zero_pieces: int
    """How many of the pieces are all zero, and take no room."""
    va: int | None
    gpu: str | None
    metadata_bytes: int


class ShownImage(msgspec.Struct, frozen=True):
    """An image without the digests of its pieces."""

    name: str
    session: str
    created: float
    """UNIX time in seconds."""
    maker: Maker
    generation: int
    sequence: int
    """Of the forward state."""
    forward_state_bytes: int
    bytes: int
    """Of all regions."""
    stored_bytes: int
    """Of the pieces that it needs; other images may need them, too."""
    regions: tuple[ShownRegion, ...]
    tensors: tuple[TensorImage, ...]


@click.command()
@click.argument("name")
@with_store
def show(session: CliSession, store: Path | None, name: str) -> None:
    """Show the image NAME: its regions, tensors and forward state."""
    with opened(session, store) as images, images.open(name) as image:
        shown = _shown(name, image.manifest)
    if session.as_json:
        session.print_json(shown)
        return
    maker = shown.maker
    for line in (
        f"session {shown.session}, {mebibytes(shown.bytes)} MiB, {mebibytes(shown.stored_bytes)} stored",
        f"made {clock(shown.created)} by {maker.program} of user {maker.uid} on {maker.host}",
        f"forward state: generation {shown.generation}, sequence {shown.sequence}, {shown.forward_state_bytes} bytes",
    ):
        session.console.print(line, markup=False)
    show_table(
        session.console,
        ("REGION", "MIB", "PIECES", "ZERO", "CHUNKS", "SEALED", "ADDRESS", "GPU"),
        [
            (
                region.name,
                mebibytes(region.bytes),
                region.pieces,
                region.zero_pieces,
                region.chunks,
                region.sealed,
                "-" if region.va is None else hex(region.va),
                region.gpu or "-",
            )
            for region in shown.regions
        ],
        optional=("GPU", "ADDRESS", "SEALED", "CHUNKS"),
        cut="REGION",
    )
    if shown.tensors:
        show_table(
            session.console,
            ("TENSOR", "TYPE", "SHAPE", "REGION", "OFFSET"),
            [
                (printable(tensor.name), tensor.dtype, list(tensor.shape), tensor.region, tensor.offset)
                for tensor in shown.tensors
            ],
            optional=("OFFSET", "REGION"),
            cut="TENSOR",
        )


def _shown(name: str, manifest: Manifest) -> ShownImage:
    return ShownImage(
        name,
        manifest.session,
        manifest.created,
        manifest.maker,
        manifest.generation,
        manifest.sequence,
        len(manifest.forward_state),
        manifest.size,
        sum(manifest.pieces().values()),
        tuple(_region(region) for region in manifest.regions),
        manifest.tensors,
    )


def _region(region: RegionImage) -> ShownRegion:
    return ShownRegion(
        region.name,
        region.size,
        len(region.sizes),
        len(region.sealed),
        len(region.pieces),
        region.pieces.count(None),
        region.va,
        region.gpu,
        len(region.metadata),
    )


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
