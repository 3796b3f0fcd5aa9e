"""This Python, its standard library, and what mpsguard's sensors import, as an archive for a machine."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import msgspec

from tests.vm.archive import Archive
from tests.vm.sources import ROOT

HOME = "python"
_LEFT_OUT = {"test", "idlelib", "ensurepip", "tkinter", "turtledemo", "lib2to3", "site-packages", "__pycache__"}


def add_python(archive: Archive) -> None:
    """Put all of it below /python; `run` names the command that starts it."""
    interpreter = Path(sys.executable).resolve()
    archive.file(f"{HOME}/bin/python3", interpreter)
    library = Path(sysconfig.get_path("stdlib"))
    extensions = _add_tree(archive, library, f"{HOME}/lib/{library.name}")
    packages = f"{HOME}/lib/{library.name}/site-packages"
    extensions += _add_tree(archive, Path(msgspec.__file__).parent, f"{packages}/msgspec")
    _add_tree(archive, ROOT / "mpsguard", f"{packages}/mpsguard")
    add_shared_libraries(archive, interpreter, *extensions)


def run(program: str) -> str:
    """The shell line that runs a program of the archive with it."""
    return f"PYTHONHOME=/{HOME} PYTHONDONTWRITEBYTECODE=1 /{HOME}/bin/python3 {program}"


def add_shared_libraries(archive: Archive, *binaries: Path) -> None:
    """What these programs and extension modules are linked to."""
    for shared in sorted(_shared_libraries(list(binaries))):
        archive.file(str(shared).lstrip("/"), shared)


def _add_tree(archive: Archive, root: Path, target: str) -> list[Path]:
    """Every file below; returns the extension modules among them."""
    extensions = []
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if path.is_dir() or _LEFT_OUT & set(inside.parts) or inside.parts[0].startswith("config-"):
            continue
        if path.suffix == ".so":
            extensions.append(path)
        elif path.suffix not in {".py", ".json"}:
            continue
        archive.file(f"{target}/{inside}", path)
        compiled = _compiled(path) if path.suffix == ".py" else None
        if compiled is not None:
            place = importlib.util.cache_from_source(f"{target}/{inside}")
            archive.data(place, compiled)
    return extensions


def _compiled(source: Path) -> bytes | None:
    """This Python's cached bytecode of a file, to be taken in the machine without a look at the file's time.

    None if there is none for the file as it is. To compile is what takes longest in an emulated processor.
    """
    try:
        cached = Path(importlib.util.cache_from_source(str(source))).read_bytes()
    except FileNotFoundError:
        return None
    is_of = source.stat()
    told = (int(is_of.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little") + (is_of.st_size & 0xFFFFFFFF).to_bytes(4, "little")
    # Magic number, flags, time and size; with the lowest flag a hash of the source stands in their place, not checked
    # unless the next flag is set (PEP 552).
    if cached[:16] != importlib.util.MAGIC_NUMBER + bytes(4) + told:
        return None
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + cached[16:]


def _shared_libraries(binaries: list[Path]) -> set[Path]:
    found: set[Path] = set()
    listed = subprocess.run(
        ["ldd", *map(str, binaries)], capture_output=True, text=True, check=False, timeout=60.0
    ).stdout
    for line in listed.splitlines():
        match = re.search(r"(?:=> )?(/\S+) \(0x", line)
        if match is not None and not match[1].startswith(tuple(map(str, binaries))):
            found.add(Path(match[1]))
    return found
