"""The Debian package as scripts/build-packages makes it, once for a test session, and a later version of it."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from mpsguard import __version__
from tests.integration.systemd.installed import REPOSITORY

LATER: Final = "99.0"
"""Version of the package that upgrades."""

_BUILD_DEADLINE: Final = 600.0
"""Seconds; it takes some twenty on two idle cores."""


def build(directory: Path, *kinds: str) -> dict[str, Path]:
    """Build packages of those kinds into ``directory``; by the ends of their names. Skips without apt or pip."""
    chosen = [word for kind in kinds for word in ("--only", kind)]
    command: list[str | Path] = [
        sys.executable,
        REPOSITORY / "scripts" / "build-packages",
        "--output",
        directory,
        *chosen,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_BUILD_DEADLINE)
    if done.returncode and ("run apt-get update" in done.stderr or "No matching distribution" in done.stderr):
        pytest.skip(f"no packages to build from: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    return {line.rpartition(".")[2]: Path(line) for line in done.stdout.splitlines()}


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
