"""What tests build and need again: kept in the user's cache directory by what went into it, for every clone.

A build is made again when a source, a flag or the compiler is another one; `make clean` removes all.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

KEPT: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mpsguard"


def digest(*roots: Path | str) -> str:
    """Of names and contents of files but documentation, and of texts."""
    total = hashlib.sha256()
    for root in roots:
        if isinstance(root, str):
            total.update(root.encode())
            continue
        inside = root.rglob("*") if root.is_dir() else [root]
        paths = sorted(
            path for path in inside if path.is_file() and path.suffix != ".md" and "__pycache__" not in path.parts
        )
        for path in paths:
            total.update(f"{path.relative_to(root.parent)}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


@cache
def compiler(program: str) -> str:
    """Which compiler it is: where it lies, and what it says of itself."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    return f"{shutil.which(program)} {said}"


def kept(name: str, *parts: Path | str, make: Callable[[Path], None]) -> Path:
    """The directory of a build: made by ``make``, which is given an empty one, unless it is there.

    Args:
        name: What it is, for a reader of the cache.
        parts: All that decides what comes out: files, directories, texts (flags, compilers).
        make: Builds; if it raises, nothing is kept.
    """
    directory = KEPT / "built" / f"{name}-{digest(*parts)}"
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Another worker may be at it: two builds take longer than one.
    with Path(f"{directory}.lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            fresh = Path(f"{directory}.new")
            # Of a run that was killed.
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            try:
                make(fresh)
                fresh.rename(directory)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return directory
