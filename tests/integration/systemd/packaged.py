"""The Debian package as scripts/build-packages makes it, and a later version of it."""

import shutil
import subprocess
import sys
from functools import partial
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

_BUILD_DEADLINE: Final = 600.0
"""Seconds; it takes some twenty on two idle cores."""


def build(directory: Path, *kinds: str, checkout: Path = REPOSITORY, umask: int = -1) -> dict[str, Path]:
    """Build packages of those kinds into ``directory``; by the ends of their names. Skips without apt or pip.

    Args:
        directory: Where they go.
        kinds: As `scripts/build-packages` calls them.
        checkout: What is built.
        umask: Of the build; this process's if -1.
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
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_BUILD_DEADLINE, umask=umask)
    if done.returncode and ("run apt-get update" in done.stderr or "No matching distribution" in done.stderr):
        pytest.skip(f"no packages to build from: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    return {line.rpartition(".")[2]: Path(line) for line in done.stdout.splitlines()}


def kept_build(directory: Path, *kinds: str) -> dict[str, Path]:
    """The same, but what is in the user's cache directory is not built again.

    It is if any file is another one that is not of the tests, the documentation or the simulation, or any package of
    this environment. The time of the commit, which the packages bear, is not looked at; nor is Debian's interpreter.
    """
    command = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split("\0")
    names = sorted(name for name in listed if name and name.partition("/")[0] not in _NOT_PACKED)
    environment = sorted(f"{each.name} {each.version}" for each in distributions())
    parts = [part for name in names for part in (f"\0{name}\0", REPOSITORY / name)]
    built = kept("packages", *parts, *environment, *kinds, compiler("gcc"), make=partial(_build_into, kinds=kinds))
    shutil.copytree(built, directory, dirs_exist_ok=True)
    return {path.name.rpartition(".")[2]: path for path in directory.iterdir()}


def _build_into(directory: Path, kinds: tuple[str, ...]) -> None:
    build(directory, *kinds)


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
