"""The files of the images' manifests: names, reading, publishing, removing."""

import os
import secrets
from contextlib import suppress
from typing import Final

from mpsguard.images.store import manifest as manifests
from mpsguard.images.store.draft_directory import DraftDirectory
from mpsguard.images.store.errors import BadNameError, UnknownImageError, os_errors
from mpsguard.images.store.manifest import Manifest
from mpsguard.images.store.store_files import IMAGES, REMOVED, StoreFiles, hold, read_at_most, write_all
from mpsguard.vault.wire.errors import BadRequestError
from mpsguard.vault.wire.region import check_name

_SUFFIX: Final = ".json"
_DRAFT: Final = "manifest"
_BESIDE: Final = "beside"


def check_image_name(name: str) -> None:
    """Raise BadNameError unless ``name`` is one that an image may have; the rule is that of sessions."""
    try:
        check_name("image", name)
    except BadRequestError:
        raise BadNameError(
            f"{name!r} is no name of an image: letters, digits and _.:/- are allowed, at most 128, the first one a "
            "letter, a digit or _"
        ) from None


def file_name(name: str) -> str:
    """Return the name of an image's file. No name has a plus, so that no two share a file."""
    check_image_name(name)
    return name.replace("/", "+") + _SUFFIX


def names(files: StoreFiles) -> list[str]:
    """Return the names of all images, sorted. Other files in the directory are none of ours."""
    found = []
    for entry in files.listed(IMAGES):
        name = entry.removesuffix(_SUFFIX).replace("+", "/")
        with suppress(BadNameError):
            if file_name(name) == entry:
                found.append(name)
    return sorted(found)


def open_locked(files: StoreFiles, name: str) -> int:
    """Return a locked descriptor of an image's file; while it is open, no collector removes the image's pieces.

    Raises:
        UnknownImageError: there is none.
        StoreFailedError: the operating system refuses.
    """
    path = f"{IMAGES}/{file_name(name)}"
    while True:
        with os_errors(f"image {name}"):
            try:
                fd = files.open_file(path)
            except FileNotFoundError:
                raise UnknownImageError(f"there is no image {name} in {files.path}") from None
            try:
                hold(fd, f"image {name}")
                # Removed and collected between opening and locking: then there may be another one of that name.
                if os.fstat(fd).st_nlink:
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)


def read(fd: int, name: str) -> Manifest:
    """Read an image's file.

    Raises:
        DamagedError: it is not what was written.
        BadManifestError: it is too large, of another version, or contradicts itself.
    """
    with os_errors(f"image {name}"):
        os.lseek(fd, 0, os.SEEK_SET)
        data = read_at_most(fd, manifests.MOST_BYTES)
    return manifests.decode(data, name)


def publish(files: StoreFiles, name: str, manifest: Manifest, draft: str) -> int:
    """Put an image in the place of the one of that name, if there is one, and return when that is on disk.

    Args:
        files: the store.
        name: of the image.
        manifest: of the image; its pieces are on disk.
        draft: path of the draft's directory.

    Returns:
        A locked descriptor of the image's file, owned by the caller; as that of `open_locked`.
    """
    beside, path = f"{draft}/{_DRAFT}", f"{IMAGES}/{file_name(name)}"
    data = manifests.encode(manifest)
    fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=files.fd)
    try:
        write_all(fd, data)
        os.fsync(fd)
        # Ahead of its name: behind it, another process may remove the image and collect.
        hold(fd, f"image {name}")
        with files.exclusive():
            with suppress(FileNotFoundError):
                os.link(path, _removed_path(), src_dir_fd=files.fd, dst_dir_fd=files.fd, follow_symlinks=False)
            os.rename(beside, path, src_dir_fd=files.fd, dst_dir_fd=files.fd)
        files.sync_directory(IMAGES)
    except BaseException:
        os.close(fd)
        raise
    return fd


def remove(files: StoreFiles, name: str) -> None:
    """Remove an image; processes that have it open go on reading it.

    Raises:
        UnknownImageError: there is none.
    """
    path = f"{IMAGES}/{file_name(name)}"
    with files.exclusive():
        try:
            os.rename(path, _removed_path(), src_dir_fd=files.fd, dst_dir_fd=files.fd)
        except FileNotFoundError:
            raise UnknownImageError(f"there is no image {name} in {files.path}") from None
    files.sync_directory(IMAGES)


def read_beside(files: StoreFiles, name: str, ending: str, most: int) -> bytes | None:
    """Return the content of the file beside an image's that has this ending.

    Returns:
        None if there is none, it is no regular file, or it has more than ``most`` bytes.
    """
    try:
        data = files.read(f"{IMAGES}/{file_name(name)}{ending}", most)
    except OSError:
        return None
    return data if len(data) <= most else None


def put_beside(files: StoreFiles, name: str, ending: str, data: bytes) -> None:
    """Put a file beside an image's, in the place of the one that is there; raise OSError."""
    with files.shared():
        draft = DraftDirectory.make(files)
    try:
        beside = f"{draft.path}/{_BESIDE}"
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=files.fd)
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(beside, f"{IMAGES}/{file_name(name)}{ending}", src_dir_fd=files.fd, dst_dir_fd=files.fd)
    finally:
        draft.close()


def removed(files: StoreFiles) -> list[str]:
    """Return the paths of removed manifests."""
    return [f"{REMOVED}/{entry}" for entry in files.listed(REMOVED)]


def current(files: StoreFiles) -> list[tuple[str, str]]:
    """Return path and name of the manifests of all images."""
    return [(f"{IMAGES}/{file_name(name)}", name) for name in names(files)]


def _removed_path() -> str:
    return f"{REMOVED}/{secrets.token_hex(16)}{_SUFFIX}"
