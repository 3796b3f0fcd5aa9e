"""`mpsguard-ctl image import` and `export`: images out of files of safetensors, and back."""

from contextlib import ExitStack
from pathlib import Path

import click
import msgspec

from mpsguard.cli.image_commands.store_option import fail, mebibytes, opened, with_store
from mpsguard.cli.progress import progress_bar
from mpsguard.cli.session import CliSession, Exit
from mpsguard.images.store import safetensors_file
from mpsguard.images.store.errors import ImageError, UnknownImageError
from mpsguard.images.store.manifest import Manifest
from mpsguard.images.store.store import ImageStore

_FILE = click.Path(path_type=Path)


class Imported(msgspec.Struct, frozen=True):
    """An image that was made of files."""

    name: str
    tensors: int
    bytes: int
    written_bytes: int
    """Of the pieces that no other image had."""


class Exported(msgspec.Struct, frozen=True):
    """A file that was made of an image."""

    file: str
    tensors: int
    bytes: int


@click.command("import")
@click.argument("name")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=_FILE)
@click.option("--replace", is_flag=True, help="If there is an image NAME already, put the new one in its place.")
@with_store
def import_files(session: CliSession, store: Path | None, name: str, files: tuple[Path, ...], replace: bool) -> None:
    """Make the image NAME of files of safetensors; each becomes a region, under the file's name without its ending."""
    regions = [_region_name(file) for file in files]
    if twice := [region for region in regions if regions.count(region) > 1]:
        session.fail(Exit.USAGE, f"two of the files have the same name, and would be one region: {twice[0]}")
    with (
        opened(session, store, make=True) as images,
        progress_bar(session, f"import {name}") as bar,
        ExitStack() as owned,
    ):
        if not replace:
            _check_absent(session, images, name)
        sources = [
            (owned.enter_context(safetensors_file.opened(file, region)), file, region)
            for file, region in zip(files, regions, strict=True)
        ]
        _check_names(session, [(file, tensor.name) for source, file, _ in sources for tensor in source.tensors])
        bar.expect(sum(source.size for source, _, _ in sources))
        with images.begin(name) as draft:
            made = tuple(
                safetensors_file.read_into(draft, source, file, region, bar.advance) for source, file, region in sources
            )
            tensors = tuple(tensor for source, _, _ in sources for tensor in source.tensors)
            try:
                manifest = Manifest.made_now(name, made, tensors=tensors)
            except ValueError as error:
                session.fail(Exit.FAILED, f"image {name}: {error}")
            draft.commit(manifest)
            imported = Imported(name, len(tensors), manifest.size, draft.written)
    if session.as_json:
        session.print_json(imported)
        return
    session.console.print(
        f"image {name}: {imported.tensors} tensors, {mebibytes(imported.bytes)} MiB, of which "
        f"{mebibytes(imported.written_bytes)} were new to the store",
        markup=False,
    )


@click.command("export")
@click.argument("name")
@click.argument("file", type=_FILE)
@click.option("--replace", is_flag=True, help="If FILE is there already, put the new one in its place.")
@with_store
def export_file(session: CliSession, store: Path | None, name: str, file: Path, replace: bool) -> None:
    """Write the tensors of the image NAME into FILE, as safetensors."""
    if str(file) == "-":
        session.fail(Exit.USAGE, "-: an export is written in no order, and so not to standard output; ./- is a file")
    with opened(session, store) as images, images.open(name) as image, progress_bar(session, f"export {name}") as bar:
        bar.expect(image.manifest.size)
        safetensors_file.write(image, file, replace=replace, moved=bar.advance)
        tensors = image.manifest.tensors
    exported = Exported(str(file), len(tensors), sum(tensor.size for tensor in tensors))
    if session.as_json:
        session.print_json(exported)
        return
    session.console.print(f"{file}: {exported.tensors} tensors, {mebibytes(exported.bytes)} MiB", markup=False)


def _check_names(session: CliSession, tensors: list[tuple[Path, str]]) -> None:
    """Exit with one line if two files have a tensor of one name; said before they are read."""
    first: dict[str, Path] = {}
    for file, name in tensors:
        if first.setdefault(name, file) is not file:
            session.fail(Exit.FAILED, f"{file}: tensor {name!r} is in {first[name]}, too")


def _region_name(file: Path) -> str:
    """Return the name of a file as one of a region: what no region's name may have becomes a hyphen."""
    stem = file.name.removesuffix(".safetensors")
    kept = "".join(each if each.isascii() and (each.isalnum() or each in "_.:-") else "-" for each in stem)
    return ("_" + kept if not kept[:1].isalnum() else kept)[:128]


def _check_absent(session: CliSession, images: ImageStore, name: str) -> None:
    try:
        images.open(name).close()
    except UnknownImageError:
        return
    except ImageError as error:
        fail(session, error)
    session.fail(Exit.FAILED, f"there is an image {name} already; --replace puts another one in its place")
