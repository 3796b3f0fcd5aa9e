"""What every command of `mpsguard-ctl image` needs: the store, and exit codes for its errors."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from mpsguard.cli.session import CliSession, Exit, with_session
from mpsguard.images.store.errors import (
    BadNameError,
    DamagedError,
    ImageError,
    QuotaError,
    StoreFullError,
    UnknownImageError,
)
from mpsguard.images.store.location import LocationError, default_directory, default_quota
from mpsguard.images.store.store import ImageStore


class ImageExit(IntEnum):
    """Exit codes of `mpsguard-ctl image` besides 0, 1 and 2 of `Exit`."""

    DAMAGED = 3
    NO_SUCH_IMAGE = 6
    NO_ROOM = 7


def exit_code(error: ImageError) -> int:
    """Return the exit code for an error."""
    match error:
        case BadNameError() | LocationError():
            return Exit.USAGE
        case DamagedError():
            return ImageExit.DAMAGED
        case UnknownImageError():
            return ImageExit.NO_SUCH_IMAGE
        case QuotaError() | StoreFullError():
            return ImageExit.NO_ROOM
        case _:
            return Exit.FAILED


def fail(session: CliSession, error: ImageError) -> NoReturn:
    """Exit with the code and the text of an error."""
    session.fail(exit_code(error), str(error))


F = TypeVar("F", bound=Callable[..., Any])


def with_store(command: F) -> F:
    """Give a command its session and the directory that --store names, None for the default one."""
    option = click.option(
        "--store",
        type=click.Path(path_type=Path),
        metavar="DIRECTORY",
        help="Directory of the images, in the place of the default one.",
    )
    return with_session(option(command))


def directory_of(session: CliSession, store: Path | None) -> Path:
    """Return the directory that --store names, or the default one; exits if the environment names none."""
    try:
        return default_directory() if store is None else store
    except LocationError as error:
        fail(session, error)


def is_absent(directory: Path) -> bool:
    """Return whether there is no such directory; where that cannot be told, opening it says why."""
    try:
        directory.stat()
    except OSError as error:
        return error.errno in {errno.ENOENT, errno.ENOTDIR}
    return False


@contextmanager
def opened(session: CliSession, store: Path | None, *, make: bool = False) -> Iterator[ImageStore]:
    """Open the store; an error of images within ends the command with its exit code.

    Args:
        session: of the command.
        store: its directory; None for the default one.
        make: whether to make it if there is none.
    """
    directory = directory_of(session, store)
    try:
        if not make and is_absent(directory):
            raise UnknownImageError(f"there is no store of images at {directory}")
        with ImageStore(directory, quota=default_quota()) as images:
            yield images
    except ImageError as error:
        fail(session, error)


def mebibytes(size: int) -> str:
    """Return a size in MiB, with as many digits as a small one needs to be more than 0."""
    return f"{size / (1 << 20):.2g}" if size < 10 << 20 else str(size >> 20)
