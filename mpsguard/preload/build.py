"""Builds the preload: one gcc call, the same for the package and for the tests."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parent

FLAGS: Final = (
    "-std=c11",
    "-O2",
    "-g",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
)

LINK: Final = (
    "-shared",
    "-Wl,-soname,libmpsguard.so",
    # What the hooks call of themselves are the hooks, whatever else is preloaded.
    "-Wl,-Bsymbolic",
    # Bound at load time: no lookup of ours can meet the loader half way through another one.
    "-Wl,-z,relro,-z,now,-z,noexecstack",
    "-Wl,--no-undefined",
)


class CompilerError(Exception):
    """The compiler is not there, or refused; the text is its own."""


def compile_library(target: Path, *, flags: Sequence[str] = (), compiler: str = "gcc") -> None:
    """Compile the sources beside this file into the shared library ``target``; `CompilerError` if that fails."""
    sources = sorted(str(path) for pattern in ("*.c", "*.S") for path in SOURCES.glob(pattern))
    script = f"-Wl,--version-script={SOURCES / 'exports.map'}"
    command = [compiler, *FLAGS, *flags, *LINK, script, "-o", str(target), *sources, "-ldl", "-lpthread"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except FileNotFoundError:
        raise CompilerError(f"{compiler} is not installed") from None
    if done.returncode:
        raise CompilerError(done.stderr.strip())
