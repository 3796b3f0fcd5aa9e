"""Builds the allocator for PyTorch's pools: one gcc call, the same for the package and for the tests."""

import subprocess
from pathlib import Path
from typing import Final

NAME: Final = "libmpsguard_pool.so"

_HERE: Final = Path(__file__).resolve().parent
_FLAGS: Final = ("-std=c11", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
_LINK: Final = ("-shared", f"-Wl,-soname,{NAME}", "-Wl,-z,relro,-z,now,-z,noexecstack", "-Wl,--no-undefined")


class CompilerError(Exception):
    """The compiler is not there, or refused; the text is its own."""


def compile_library(target: Path, *, compiler: str = "gcc") -> None:
    """Compile ``pool.c`` into the shared library ``target``; `CompilerError` if that fails."""
    command = [compiler, "-D_GNU_SOURCE", *_FLAGS, *_LINK, "-o", str(target), str(_HERE / "pool.c"), "-lpthread"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        raise CompilerError(f"{compiler} is not installed") from None
    if done.returncode:
        raise CompilerError(done.stderr.strip())
