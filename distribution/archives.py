"""Archives in which nothing shows when, where and by which user they were made."""

import gzip
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written(path: Path, made_at: int) -> Iterator[tarfile.TarFile]:
    """A new .tar.gz, open for members that `plain` has made plain; ``made_at`` is in seconds since 1970."""
    # gzip, since a bare system has no xz; without the present time in its header.
    with (
        path.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=made_at) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as packed,
    ):
        yield packed


def plain(member: tarfile.TarInfo, made_at: int) -> tarfile.TarInfo:
    """The member as root's, of that time, with the modes that a umask of 022 gives."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = made_at
    # Of the archive that it was read from: times in fractions of a second.
    member.pax_headers = {}
    if not member.issym():
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


def make_plain(path: Path, made_at: int) -> None:
    """Write a .tar.gz again in its place, its members sorted and plain."""
    fresh = path.with_name(f"{path.name}.plain")
    with tarfile.open(path) as read, written(fresh, made_at) as packed:
        for member in sorted(read.getmembers(), key=lambda member: member.name):
            content = read.extractfile(member)
            packed.addfile(plain(member, made_at), content)
    fresh.replace(path)
