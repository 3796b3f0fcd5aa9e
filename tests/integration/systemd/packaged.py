"""The Debian package as scripts/build-packages makes it, and a later version of it."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

import pytest

from mpsguard import __version__
from tests.harness.kept import compiler, kept
from tests.integration.systemd.installed import REPOSITORY

LATER: Final = "99.0"
"""Version of the package that upgrades."""

_NOT_PACKED: Final = ("docs", "examples", "fault_injection", "tests")
"""Folders of which no file is part of the program. Pages and examples are in a package as they are: an older one is no
other program."""

_OF_DEBIAN: Final = Path("/var/lib/dpkg/status")
"""Which packages of Debian are installed, the linker and the C library among them, in which versions."""

MADE_AT: Final = 1_767_225_600
"""Time that the packages kept for tests bear: SOURCE_DATE_EPOCH of their build."""

_BUILD_DEADLINE: Final = 600.0
"""Seconds; it takes some twenty on two idle cores."""


def build(
    directory: Path, *kinds: str, checkout: Path = REPOSITORY, umask: int = -1, made_at: int | None = None
) -> dict[str, Path]:
    """Build packages of those kinds into ``directory``; by the ends of their names. Skips without apt or pip.

    Args:
        directory: Where they go.
        kinds: As `scripts/build-packages` calls them.
        checkout: What is built.
        umask: Of the build; this process's if -1.
        made_at: SOURCE_DATE_EPOCH, the time that the packages bear; None: that of the commit.
    """
    chosen = [word for kind in kinds for word in ("--only", kind)]
    command: list[str | Path] = [
        sys.executable,
        checkout / "scripts" / "build-packages",
        "--output",
        directory,
        "--cache",
        REPOSITORY / ".cache" / "packages",
        *chosen,
    ]
    environment = os.environ if made_at is None else {**os.environ, "SOURCE_DATE_EPOCH": str(made_at)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=_BUILD_DEADLINE, umask=umask
    )
    if done.returncode and ("run apt-get update" in done.stderr or "No matching distribution" in done.stderr):
        pytest.skip(f"no packages to build from: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    return {line.rpartition(".")[2]: Path(line) for line in done.stdout.splitlines()}


def kept_packages(directory: Path) -> dict[str, Path]:
    """Put deb, wheel and source archive, and the bill of materials, there. Built once for all tests: see `_kept`."""
    return _kept(directory, "deb", "wheel")


def kept_wheel(directory: Path) -> dict[str, Path]:
    """Put at least wheel and source archive there: without apt, from which a deb has its interpreter, these alone."""
    try:
        return kept_packages(directory)
    except pytest.skip.Exception:
        return _kept(directory, "wheel")


def working_tree() -> list[str]:
    """Names of the files of the checkout as it lies there: those of the commit, and what is not ignored."""
    command = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split("\0")
    return sorted({name for name in listed if name and (REPOSITORY / name).is_file()})


def _kept(directory: Path, *kinds: str) -> dict[str, Path]:
    """The same as `build`, but what is in the user's cache directory is not built again.

    It is if any file is another one that is not of the tests, the documentation or the simulation, or any package of
    this environment or of Debian. The packages are of `MADE_AT`, whenever the commit was made.
    """
    names = [name for name in working_tree() if name.partition("/")[0] not in _NOT_PACKED]
    environment = sorted(f"{each.name} {each.version}" for each in distributions())
    of_debian = [_OF_DEBIAN] if _OF_DEBIAN.exists() else []
    parts = [part for name in names for part in (f"\0{name}\0", REPOSITORY / name)]

    def make(fresh: Path) -> None:
        build(fresh, *kinds, made_at=MADE_AT)

    built = kept("packages", *parts, *environment, *of_debian, *kinds, compiler("gcc"), make=make)
    shutil.copytree(built, directory, dirs_exist_ok=True)
    return {path.name.rpartition(".")[2]: path for path in directory.iterdir()}


def later(package: Path, scratch: Path) -> Path:
    """The same package as its version 99.0, and the program in it says so."""
    tree = scratch / "later"
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True, timeout=60)
    source = tree / "usr" / "lib" / "mpsguard" / "lib" / "python3" / "dist-packages" / "mpsguard" / "__init__.py"
    for file, old, new in (
        (source, f'"{__version__}"', f'"{LATER}"'),
        (tree / "DEBIAN" / "control", f"Version: {__version__}", f"Version: {LATER}"),
    ):
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")
    python = tree / "usr" / "lib" / "mpsguard" / "bin" / "python3"
    compiling: list[str | Path] = ["-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash", source]
    subprocess.run([python, "-I", *compiling], check=True, timeout=60)
    made = scratch / "later.deb"
    build_again: list[str | Path] = ["dpkg-deb", "-Znone", "--root-owner-group", "--build", tree, made]
    subprocess.run(build_again, check=True, capture_output=True, timeout=60)
    return made
