"""The Python interpreter that the packages bring: Debian's own, unpacked and made to run from any directory.

Debian's, since it is built by others, has security support, says its licenses, and can be had without compiling. The
libraries it needs come with it, but glibc and libexpat, which every distribution has.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from distribution.commands import BuildError, call
from distribution.linkage import linkage, linkages

_LIBRARIES: Final = ("libffi", "libsqlite3-", "libssl3", "zlib1g")
"""How the names of the packages begin that hold the libraries of the modules that are wanted."""

OF_THE_MACHINE: Final = frozenset(
    {"ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libexpat.so.1", "libm.so.6", "libpthread.so.0", "librt.so.1"}
)
"""Not brought along: glibc's libraries, and libexpat, which in Debian 12 needs a newer glibc than the others."""

_NOT_WANTED: Final = ("EXTERNALLY-MANAGED", "lib2to3", "pydoc_data", "sitecustomize.py", "unittest/test", "venv")
"""Parts of the standard library that no part of the program uses, or that concern Debian's installation alone."""


class DebianPackage(NamedTuple):
    """A package of which the tree holds files."""

    name: str
    version: str
    architecture: str


class Interpreter(NamedTuple):
    """The interpreter in a tree."""

    series: str
    """As "3.11"."""

    program: Path
    packages: tuple[DebianPackage, ...]


def unpack(tree: Path, cache: Path) -> Interpreter:
    """Fetch the distribution's Python and lay it out below ``tree`` (bin, lib, share/doc).

    Args:
        tree: An empty directory.
        cache: Where the packages are kept between builds.

    Raises:
        BuildError: apt has no Python 3.11 or later.
    """
    cache.mkdir(parents=True, exist_ok=True)
    series = _series(cache)
    names = [f"python{series}-minimal", f"libpython{series}-minimal", f"libpython{series}-stdlib"]
    archives = _fetch(names, cache)
    archives += _fetch(sorted(_libraries(archives)), cache)
    unpacked = tree / "unpacked"
    for archive in archives:
        call(["dpkg-deb", "--extract", archive, unpacked])
    binary = tree / "bin" / f"python{series}"
    binary.parent.mkdir()
    shutil.move(unpacked / "usr" / "bin" / binary.name, binary)
    (tree / "bin" / "python3").symlink_to(binary.name)
    standard = tree / "lib" / binary.name
    standard.parent.mkdir()
    shutil.move(unpacked / "usr" / "lib" / binary.name, standard)
    private = tree / "lib" / "private"
    private.mkdir()
    _keep_libraries(unpacked, private)
    _prune(standard, private)
    # DT_RPATH, not DT_RUNPATH: it holds for the modules that the interpreter loads, too.
    call(["patchelf", "--force-rpath", "--set-rpath", "$ORIGIN/../lib/private", binary])
    licenses = tree / "share" / "doc" / "mpsguard" / "interpreter"
    for copyright_file in sorted(unpacked.glob("usr/share/doc/*/copyright")):
        target = licenses / copyright_file.parent.name / "copyright"
        target.parent.mkdir(parents=True)
        shutil.copyfile(copyright_file, target)
    shutil.rmtree(unpacked)
    return Interpreter(series, binary, tuple(_described(archive) for archive in archives))


def _apt(tool: str, *arguments: str, cache: Path) -> str:
    # With an index of its own: container images switch apt's off, and then each call takes a second to make one.
    index = [f"Dir::Cache::{name}={cache / name}" for name in ("pkgcache", "srcpkgcache")]
    options = [word for option in (*index, "APT::Sandbox::User=root") for word in ("-o", option)]
    return call([tool, "-qq", *options, *arguments], cwd=cache)


def _series(cache: Path) -> str:
    """Version of Python that the distribution has as its own, as "3.11"."""
    said = _apt("apt-cache", "show", "--no-all-versions", "python3-minimal", cache=cache)
    found = re.search(r"python3\.(\d+)-minimal", said)
    if found is None or int(found[1]) < 11:
        raise BuildError("apt has no Python 3.11 or later (python3-minimal): build on Debian 12 or later")
    return f"3.{found[1]}"


def _fetch(names: list[str], cache: Path) -> list[Path]:
    """Download packages, unless the version that apt would take is there already."""
    said = _apt("apt-cache", "show", "--no-all-versions", *names, cache=cache)
    found = dict(re.findall(r"^Package: (\S+)$.*?^Version: (\S+)$", said, re.MULTILINE | re.DOTALL))
    lacking = sorted(set(names) - set(found))
    if lacking:
        raise BuildError(f"apt has no package {lacking[0]}: run apt-get update")
    wanted = [f"{name}={found[name]}" for name in names if not _kept(cache, name, found[name])]
    if wanted:
        _apt("apt-get", "download", *wanted, cache=cache)
    archives = [kept for name in names for kept in _kept(cache, name, found[name])]
    if len(archives) != len(names):
        raise BuildError(f"{cache}: apt-get download left {len(archives)} files of {len(names)}")
    return archives


def _kept(cache: Path, name: str, version: str) -> list[Path]:
    # The name that apt-get gives to the file.
    return sorted(cache.glob(f"{name}_{version.replace(':', '%3a')}_*.deb"))[:1]


def _libraries(archives: list[Path]) -> Iterator[str]:
    """Packages among what ``archives`` depend on that hold a library that is wanted."""
    for archive in archives:
        for dependency in call(["dpkg-deb", "--field", archive, "Depends"]).split(","):
            name = dependency.split()[0].partition(":")[0]
            if name.startswith(_LIBRARIES):
                yield name


def _keep_libraries(unpacked: Path, private: Path) -> None:
    """Move the libraries to ``private``, each under the name by which it is asked for."""
    for path in sorted(unpacked.glob("**/lib/*-linux-gnu/lib*.so.*")):
        if path.is_symlink():
            real = unpacked.joinpath(*path.readlink().parts[1:]) if path.readlink().is_absolute() else path.resolve()
            shutil.copyfile(real, private / path.name)
        elif path.name.count(".") == 2:
            shutil.copyfile(path, private / path.name)
    for path in private.iterdir():
        path.chmod(0o644)


def _prune(standard: Path, private: Path) -> None:
    """Take away what is not wanted, and the modules in C that need a library which is not there."""
    for name in _NOT_WANTED:
        path = standard / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)
    for path in standard.glob("config-*"):
        shutil.rmtree(path)
    at_hand = OF_THE_MACHINE | {path.name for path in private.iterdir()}
    for path, found in linkages(standard / "lib-dynload"):
        if not found.libraries <= at_hand:
            path.unlink()
    for path in private.iterdir():
        needs = linkage(path)
        if needs is not None and not needs.libraries <= at_hand:
            raise BuildError(f"{path.name} needs {', '.join(sorted(needs.libraries - at_hand))}")


def _described(archive: Path) -> DebianPackage:
    fields = [call(["dpkg-deb", "--field", archive, field]).strip() for field in ("Package", "Version", "Architecture")]
    return DebianPackage(*fields)
