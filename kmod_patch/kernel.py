"""The kernel that a module is for: its headers, and whether it would load what is not signed."""

import platform
import re
from pathlib import Path
from typing import Final

import msgspec

from kmod_patch.errors import KernelError

MODULES: Final = Path("/lib/modules")
_LOCKDOWN: Final = Path("/sys/kernel/security/lockdown")
_ENFORCED: Final = Path("/sys/module/module/parameters/sig_enforce")


class Headers(msgspec.Struct, frozen=True):
    """What modules of one kernel are built against."""

    release: str
    build: Path
    source: Path

    @property
    def sign_file(self) -> Path:
        """The kernel's own program that signs a module."""
        return self.build / "scripts" / "sign-file"


class Key(msgspec.Struct, frozen=True):
    """A private key and its certificate, with which modules are signed."""

    private: Path
    certificate: Path


def running_release() -> str:
    """The release of the kernel that runs."""
    return platform.release()


def find_headers(release: str, build: Path | None = None, source: Path | None = None) -> Headers:
    """Headers of a kernel, in its usual place if none is named; raises KernelError."""
    build = build or MODULES / release / "build"
    if not (build / "Makefile").is_file() or not (build / "include").is_dir():
        raise KernelError(
            f"{build}: no headers of kernel {release} (Debian: linux-headers-{release}); name them with --headers"
        )
    if source is None:
        beside = MODULES / release / "source"
        source = beside if build == MODULES / release / "build" and beside.is_dir() else _source_of(build)
    return Headers(release, build.resolve(), source.resolve())


def _source_of(build: Path) -> Path:
    """Debian's headers come in two parts, and the Makefile of one includes that of the other."""
    found = re.search(r"^include\s+(\S+)/Makefile\s*$", (build / "Makefile").read_text(errors="replace"), re.MULTILINE)
    return Path(found[1]) if found and Path(found[1]).is_dir() else build


def why_only_signed(lockdown: Path = _LOCKDOWN, enforced: Path = _ENFORCED) -> str | None:
    """Why the running kernel loads signed modules only; None if it loads others too, or does not say."""
    mode = re.search(r"\[(\w+)\]", _text(lockdown))
    if mode is not None and mode[1] != "none":
        return f"it is locked down ({mode[1]})"
    if _text(enforced).strip() == "Y":
        return "it enforces signatures (sig_enforce)"
    return None


def require_loadable(release: str, key: Key | None, only_signed: str | None) -> None:
    """Refuse to make an unsigned module for a running kernel that would not load it; raises KernelError."""
    if key is None and only_signed is not None and release == running_release():
        raise KernelError(
            f"kernel {release} loads signed modules only: {only_signed}; "
            "give --key and --cert of a key that it trusts (see mokutil --import)"
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
