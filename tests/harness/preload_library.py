"""The preload, compiled once for every way of building it: each test that loads it takes a copy."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mpsguard.preload import build, library
from tests.harness.kept import compiler, kept


def built(*flags: str) -> Path:
    """Return the library as the package builds it, compiled with ``flags`` besides; not to be changed.

    Kept apart from what tests load it into: a change in these compiles none of the preload.
    """
    sources = [*build.SOURCES.rglob("*.[chS]"), build.SOURCES / "exports.map", Path(build.__file__)]
    made = partial(_compile, flags=flags)
    return kept("libmpsguard", *sorted(sources), *flags, compiler("gcc"), make=made) / library.NAME


def _compile(directory: Path, flags: tuple[str, ...]) -> None:
    build.compile_library(build.PRELOAD, directory / library.NAME, flags=["-Werror", *flags])
