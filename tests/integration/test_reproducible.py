"""What `scripts/build-packages` makes of one commit is the same byte by byte, wherever and whenever it is built."""

import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from tests.harness.tree import ROOT
from tests.integration.systemd import packaged


def cloned(directory: Path, umask: int) -> Path:
    """A clone of the repository, made under this umask."""
    clone: list[str | Path] = ["git", "clone", "--quiet", ROOT, directory]
    subprocess.run(clone, check=True, capture_output=True, timeout=60, umask=umask)
    return directory


def as_it_lies_there(clone: Path) -> None:
    """Give a clone the files of the checkout that are not committed yet; their modes stay those of its umask."""
    names = packaged.working_tree()
    command = ["git", "-C", str(clone), "ls-files", "-z"]
    for name in subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split("\0"):
        if name and name not in names:
            (clone / name).unlink()
    for name in names:
        target = clone / name
        if not target.exists() or target.read_bytes() != (ROOT / name).read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
            target.chmod(0o700 if (ROOT / name).stat().st_mode & 0o100 else 0o600)


def digests(directory: Path) -> dict[str, str]:
    """Of all that was built, by their names."""
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


@pytest.mark.slow(seconds=20, reason="builds the wheel")
def test_a_wheel_is_the_same_as_that_of_the_other_tests(tmp_path: Path) -> None:
    packaged.kept_wheel(tmp_path / "a")
    # Later, elsewhere, and from files that no other user may read.
    place = tmp_path / "another" / "place"
    clone = cloned(place / "clone", 0o077)
    as_it_lies_there(clone)
    packaged.build(place / "dist", "wheel", checkout=clone, umask=0o077, made_at=packaged.MADE_AT)
    second = digests(place / "dist")
    assert len(second) == 2
    assert second == {name: digest for name, digest in digests(tmp_path / "a").items() if name in second}


# A campaign's: it takes minutes, and what it adds to the wheel are the parts that seldom change.
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_builds_of_a_commit_are_the_same(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "another" / "place"
    for directory, umask in ((first, 0o022), (second, 0o077)):
        packaged.build(directory / "dist", checkout=cloned(directory / "clone", umask), umask=umask)
    assert len(digests(first / "dist")) == 6
    assert digests(first / "dist") == digests(second / "dist")
