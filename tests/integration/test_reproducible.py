"""What `scripts/build-packages` makes of one commit is the same byte by byte, wherever and whenever it is built."""

import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from tests.harness.tree import ROOT
from tests.integration.systemd import packaged


def digests(directory: Path, umask: int, kinds: tuple[str, ...]) -> dict[str, str]:
    """Of all that a clone of the repository builds, which is made and built under this umask; by their names."""
    clone: list[str | Path] = ["git", "clone", "--quiet", ROOT, directory / "clone"]
    subprocess.run(clone, check=True, capture_output=True, timeout=60, umask=umask)
    packaged.build(directory / "dist", *kinds, checkout=directory / "clone", umask=umask)
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in (directory / "dist").iterdir()}


@pytest.mark.parametrize(
    ("kinds", "files"),
    [
        pytest.param(
            ("wheel",), 2, id="wheel", marks=pytest.mark.slow(seconds=30, reason="builds the wheel twice, from clones")
        ),
        # A campaign's: it takes minutes, and what it adds to the wheel are the parts that seldom change.
        pytest.param((), 6, id="all", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_two_builds_of_a_commit_are_the_same(tmp_path: Path, kinds: tuple[str, ...], files: int) -> None:
    first = digests(tmp_path / "a", 0o022, kinds)
    # Later, elsewhere, and from files that no other user may read.
    second = digests(tmp_path / "another" / "place", 0o077, kinds)
    assert len(first) == files
    assert first == second
