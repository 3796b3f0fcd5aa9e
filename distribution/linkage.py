"""What the programs and libraries of a tree need of the machine they run on, read from their ELF headers."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

_MAGIC: Final = b"\x7fELF"
_GLIBC: Final = re.compile(r"GLIBC_(\d+)\.(\d+)")


class Linkage(NamedTuple):
    """One file's needs: names of libraries, and the oldest glibc that has all its symbols."""

    libraries: frozenset[str]
    glibc: tuple[int, int]


def linkage(path: Path) -> Linkage | None:
    """What the file needs; None if it is no ELF file."""
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            return None
        libraries: set[str] = set()
        glibc = (0, 0)
        for section in ELFFile(file).iter_sections():
            if isinstance(section, DynamicSection):
                wanted = [tag for tag in section.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]
                libraries.update(tag.needed for tag in wanted)  # type: ignore[attr-defined] # made when it is read
            elif isinstance(section, GNUVerNeedSection):
                for _, versions in section.iter_versions():
                    found = (_GLIBC.fullmatch(version.name) for version in versions)
                    glibc = max([glibc, *((int(each[1]), int(each[2])) for each in found if each)])
    return Linkage(frozenset(libraries), glibc)


def linkages(tree: Path) -> Iterator[tuple[Path, Linkage]]:
    """All ELF files below ``tree``, without those behind symbolic links."""
    for path in sorted(tree.rglob("*")):
        if path.is_file() and not path.is_symlink() and (found := linkage(path)) is not None:
            yield path, found


def oldest_glibc(tree: Path) -> str:
    """The oldest glibc on which every file below ``tree`` loads, as "2.35"."""
    major, minor = max((found.glibc for _, found in linkages(tree)), default=(2, 17))
    return f"{major}.{minor}"
