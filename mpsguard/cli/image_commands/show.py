"""`mpsguard-ctl image show`: what an image consists of."""

from pathlib import Path

import click
import msgspec

from mpsguard.cli.image_commands.store_option import mebibytes, opened, with_store
from mpsguard.cli.session import CliSession
from mpsguard.cli.tables import show_table
from mpsguard.images.store.manifest import Maker, Manifest, RegionImage, TensorImage
from mpsguard.linux.processes.procfs import printable
from mpsguard.linux.times import clock


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
