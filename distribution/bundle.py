"""An archive for machines without deb or rpm, or with an older Python: the program, its units, and scripts/install."""

import gzip
import tarfile
from pathlib import Path
from typing import Final

import mpsguard
from distribution.package import ARCHITECTURE
from distribution.sources import ROOT

NAME: Final = f"mpsguard-{mpsguard.__version__}-linux-{ARCHITECTURE}"


def build(tree: Path, directory: Path, made_at: int) -> Path:
    """Pack the program with all that scripts/install lays out.

    Args:
        tree: The program.
        directory: Where the archive goes.
        made_at: Time that its files bear, in seconds since 1970.

    Returns:
        The archive, with everything below one directory.
    """

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        member.mtime = made_at
        return member

    # gzip, since a bare system has no xz; without the present time in its header.
    archive = directory / f"{NAME}.tar.gz"
    parts = {"program": tree} | {name: ROOT / name for name in ("scripts/install", "distribution/systemd")}
    with (
        archive.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=made_at) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as packed,
    ):
        for name, source in parts.items():
            packed.add(source, f"{NAME}/{name}", filter=plain)
    return archive
