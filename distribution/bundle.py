"""An archive for machines without deb or rpm, or with an older Python: the program, its units, and scripts/install."""

from pathlib import Path
from typing import Final

import mpsguard
from distribution import archives
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
    archive = directory / f"{NAME}.tar.gz"
    parts = {"program": tree} | {name: ROOT / name for name in ("scripts/install", "distribution/systemd")}
    with archives.written(archive, made_at) as packed:
        for name, source in parts.items():
            packed.add(source, f"{NAME}/{name}", filter=lambda member: archives.plain(member, made_at))
    return archive
