"""The checkout as source archive and wheel, built from the project's own files alone."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from distribution import archives
from distribution.commands import BuildError, call

ROOT: Final = Path(__file__).resolve().parents[1]
_PARTS: Final = ("LICENSE", "README.md", "kmod_patch", "mpsguard", "pyproject.toml")
"""What pyproject.toml builds from."""


class Distributions(NamedTuple):
    """The two files that Python's own tools make of the project."""

    source_archive: Path
    wheel: Path


def commit_time() -> int:
    """When the checkout's newest commit was made, in seconds since 1970: the time that all packages say they are of."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        return int(given or call(["git", "-C", ROOT, "log", "-1", "--format=%ct"]))
    except ValueError:
        raise BuildError(f"SOURCE_DATE_EPOCH={given}: a number of seconds is wanted") from None


def copy(parts: Sequence[str], directory: Path) -> None:
    """Copy the project's own files among ``parts`` below a directory: files and folders, as the repository has them.

    Modes are those that git knows: the umask of the clone does not show in what is built.

    Raises:
        BuildError: git cannot list them.
    """
    listed = call(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *parts])
    for name in listed.split("\0"):
        if name and (ROOT / name).is_file():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
            target.chmod(0o755 if (ROOT / name).stat().st_mode & 0o100 else 0o644)


def build(directory: Path, scratch: Path, environment: dict[str, str]) -> Distributions:
    """Build both into ``directory``; the wheel out of the source archive, so that this is known to be whole.

    Args:
        directory: Where they go.
        scratch: An empty directory to work in: setuptools leaves its litter beside what it builds.
        environment: All variables for the build; SOURCE_DATE_EPOCH is the time that the files bear.

    Raises:
        BuildError: setuptools or the C compiler refused.
    """
    copy(_PARTS, scratch)
    # setuptools is in the environment that runs this: another one would be downloaded for each build.
    built = scratch / "dist"
    call([sys.executable, "-m", "build", "--no-isolation", "--outdir", built, scratch], environment=environment)
    (archive,) = built.glob("mpsguard-*.tar.gz")
    (wheel,) = built.glob("mpsguard-*.whl")
    # setuptools writes the present time and this user into it.
    archives.make_plain(archive, int(environment["SOURCE_DATE_EPOCH"]))
    # Says in the name which glibc the C libraries need, as "manylinux_2_34". Fails if they need any other library.
    call(["auditwheel", "repair", "--wheel-dir", directory, wheel], environment=environment)
    (repaired,) = directory.glob("mpsguard-*.whl")
    return Distributions(archive.rename(directory / archive.name), repaired)
