"""The files of a store's pieces, each named by its digest.

A file that its owner may not write to is *kept*: its content, and its entry in the directory, were on disk when it got
this mode. One that is not kept may have been cut off by a failure of power, and is read before it is relied on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from mpsguard.images.store.pieces import PIECE_SIZE, Digest, digest_of
from mpsguard.images.store.store_files import PIECES, StoreFiles, write_all

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_KEPT: Final = 0o400
_SYNCING: Final = 16
"""Threads that wait for the disk at a commit."""
_AT_ONCE: Final = 0.0005
"""Seconds: a file that takes longer to be on disk is on one that has to be waited for."""
_HEXADECIMAL: Final = frozenset("0123456789abcdef")
_BEHIND: Final = bytearray(1)
"""Where a byte goes that should not be there; no thread looks at it."""
_DAMAGE: Final = "damage"
"""File of which the time of the last change says when a piece was last found damaged or missing; it is empty."""


class Presence(Enum):
    """Whether a store has a piece."""

    ABSENT = auto()
    UNSURE = auto()
    """There is a file; only its content tells."""
    KEPT = auto()


class PieceFiles:
    """Reads and writes the pieces of a store. All methods raise OSError where the operating system refuses."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files

    def presence(self, digest: Digest, size: int) -> Presence:
        """Return whether there is a piece of that size."""
        try:
            found = os.stat(_path(digest), dir_fd=self._files.fd, follow_symlinks=False)
        except FileNotFoundError:
            return Presence.ABSENT
        return Presence.KEPT if found.st_size == size and not found.st_mode & 0o200 else Presence.UNSURE

    def size(self, digest: Digest) -> int | None:
        """Return the size of a piece's file in bytes; None if there is none."""
        try:
            return os.stat(_path(digest), dir_fd=self._files.fd, follow_symlinks=False).st_size
        except FileNotFoundError:
            return None

    def matches(self, digest: Digest) -> bool:
        """Read a piece and return whether its content is what its name says."""
        return digest_of(self._files.read(_path(digest), PIECE_SIZE)) == digest

    def read_into(self, digest: Digest, buffer: WriteableBuffer, *, checked: bool = True) -> bool:
        """Read a piece into ``buffer`` and return whether it fills it, and is whole (``checked``)."""
        view = memoryview(buffer).cast("B")
        size = len(view)
        # Each system call gives up the interpreter's lock, for which the threads of a restoration wait longer than for
        # the kernel. So there is none for the size: a byte that is read from behind the piece tells a larger file.
        fd = self._files.open_of_any_kind(_path(digest))
        try:
            at = count = os.preadv(fd, [view, _BEHIND], 0)
            while count and at < size:
                count = os.preadv(fd, [view[at:], _BEHIND], at)
                at += count
        finally:
            os.close(fd)
        return at == size and (not checked or digest_of(view) == digest)

    def write(self, digest: Digest, data: memoryview, draft: str, *, replace: bool) -> bool:
        """Write a piece by way of a file in the directory of a draft.

        Args:
            digest: of the piece.
            data: its content.
            draft: path of the draft's directory.
            replace: whether there is a file with other content.

        Returns:
            False if another draft has written the piece meanwhile. That file stays: its draft may be about to mark it
            as kept, or has done so, and a new one in its place would not be on disk.
        """
        beside, path = f"{draft}/{digest}", _path(digest)
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=self._files.fd)
        try:
            write_all(fd, data)
            # Begins to write to the disk, so that the commit has less to wait for.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            with suppress(FileExistsError):
                os.mkdir(f"{PIECES}/{digest[:2]}", 0o700, dir_fd=self._files.fd)
            if replace:
                if self.presence(digest, len(data)) is Presence.KEPT:
                    return False
                os.rename(beside, path, src_dir_fd=self._files.fd, dst_dir_fd=self._files.fd)
                return True
            try:
                os.link(beside, path, src_dir_fd=self._files.fd, dst_dir_fd=self._files.fd, follow_symlinks=False)
            except FileExistsError:
                return False
            return True
        finally:
            os.close(fd)
            with suppress(OSError):  # renamed, or removed with the draft
                os.unlink(beside, dir_fd=self._files.fd)

    def keep(self, digests: Collection[Digest]) -> None:
        """Return when these pieces are on disk, and marked so."""
        prefixes = sorted({digest[:2] for digest in digests})
        _each(self._files.sync_directory, [PIECES, *(f"{PIECES}/{prefix}" for prefix in prefixes)])
        _each(self._keep, list(digests))

    def _keep(self, digest: Digest) -> None:
        fd = self._files.open_file(_path(digest))
        try:
            self._sync(fd, digest)
            os.fchmod(fd, _KEPT)
        finally:
            os.close(fd)

    def _sync(self, fd: int, digest: Digest) -> None:
        try:
            os.fsync(fd)
        except OSError:
            # The pages that the disk did not take count as written from now on: a later fsync would succeed.
            self.remove(digest)
            raise

    def damage_mark(self) -> int:
        """Return a number that is another one after a piece was found damaged or missing."""
        try:
            return os.stat(_DAMAGE, dir_fd=self._files.fd, follow_symlinks=False).st_mtime_ns
        except FileNotFoundError:
            return 0

    def note_damage(self) -> None:
        """Have drafts ask for each piece again that they would rely on without asking."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(_DAMAGE, flags, 0o600, dir_fd=self._files.fd)
        try:
            # By the clock's full resolution: the kernel's own times are some milliseconds apart.
            now = time.time_ns()
            os.utime(fd, ns=(now, now))
        finally:
            os.close(fd)

    def distrust(self, digest: Digest) -> None:
        """Mark a damaged piece, so that the next draft with this piece writes it again."""
        # Where there is no room even for that, no draft is committed either.
        with suppress(OSError):
            self.note_damage()
        fd = self._files.open_file(_path(digest))
        try:
            os.fchmod(fd, 0o600)
        finally:
            os.close(fd)

    def prefixes(self) -> list[str]:
        """Return the names of the directories with pieces: the first two digits of their digests."""
        return [name for name in self._files.listed(PIECES) if len(name) == 2 and _HEXADECIMAL.issuperset(name)]

    def listed(self, prefix: str) -> Iterator[tuple[Digest, int]]:
        """Yield digest and size of each piece in a directory, one of `prefixes`."""
        fd = os.open(f"{PIECES}/{prefix}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._files.fd)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if len(entry.name) == 64 and _HEXADECIMAL.issuperset(entry.name):
                        yield entry.name, entry.stat(follow_symlinks=False).st_size
        finally:
            os.close(fd)

    def remove(self, digest: Digest) -> None:
        """Remove a piece."""
        os.unlink(_path(digest), dir_fd=self._files.fd)


def _path(digest: Digest) -> str:
    return f"{PIECES}/{digest[:2]}/{digest}"


def _each(sync: Callable[[str], None], items: Iterable[str]) -> None:
    """Call ``sync`` with each item; the first error ends that, and is raised."""
    left, took = iter(items), 0.0
    while took < _AT_ONCE:
        item = next(left, None)
        if item is None:
            return
        began = time.monotonic()
        sync(item)
        took = time.monotonic() - began
    # By many threads: a disk that others write to takes up to seconds for each fsync, and one journal commit, or one
    # flush of the disk's cache, serves all that wait for it. Memory files answer sooner than threads start.
    with ThreadPoolExecutor(_SYNCING) as pool:
        for _ in pool.map(sync, left):
            pass
