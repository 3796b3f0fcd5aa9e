"""Builds the package's C libraries: one gcc call each, the same for the package and for the tests.

It imports nothing of the package: `setuptools_step` runs it before there is one.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

SOURCES: Final = Path(__file__).resolve().parent
"""Of the preload."""

FLAGS: Final = (
    "-std=c11",
    "-O2",
    "-g",
    "-fPIC",
    "-fvisibility=hidden",
    # Built anywhere, the libraries are the same: no path of the build in what they tell a debugger.
    f"-ffile-prefix-map={SOURCES.parents[1]}=.",
    "-Wall",
    "-Wextra",
)
_TIMEOUT: Final = 300
"""Seconds for gcc, which takes a few on two idle cores; many builds may run at once."""


class LibraryBuild(NamedTuple):
    """A shared library and what is particular about it."""

    sources: tuple[Path, ...]
    flags: tuple[str, ...]
    link: tuple[str, ...]


PRELOAD: Final = LibraryBuild(
    sources=tuple(sorted(path for pattern in ("*.c", "*.S") for path in SOURCES.rglob(pattern))),
    flags=(f"-iquote{SOURCES}",),
    link=(
        "-Wl,-soname,libmpsguard.so",
        # What the hooks call of themselves are the hooks, whatever else is preloaded.
        "-Wl,-Bsymbolic",
        f"-Wl,--version-script={SOURCES / 'exports.map'}",
        "-ldl",
        "-lpthread",
    ),
)
POOL: Final = LibraryBuild(
    sources=(SOURCES.parent / "vault" / "client" / "torch_regions" / "pool.c",),
    flags=("-D_GNU_SOURCE", "-Werror"),
    link=("-Wl,-soname,libmpsguard_pool.so", "-lpthread"),
)
"""The allocator for PyTorch's pools."""

_LINK: Final = (
    "-shared",
    # Bound at load time: no lookup of ours can meet the loader half way through another one.
    "-Wl,-z,relro,-z,now,-z,noexecstack",
    "-Wl,--no-undefined",
)


class CompilerError(Exception):
    """The compiler is not there, or refused; the text is its own."""


def compile_library(library: LibraryBuild, target: Path, *, flags: Sequence[str] = (), compiler: str = "gcc") -> None:
    """Compile ``library`` into the file ``target``; `CompilerError` if that fails."""
    command = [compiler, *FLAGS, *library.flags, *flags, *_LINK, "-o", str(target), *map(str, library.sources)]
    try:
        done = subprocess.run([*command, *library.link], capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except FileNotFoundError:
        raise CompilerError(f"{compiler} is not installed") from None
    if done.returncode:
        raise CompilerError(done.stderr.strip())
