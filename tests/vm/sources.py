"""Where the tests find the Debian kernel and the vendor's module sources that scripts/fetch-kernel-sources unpacked."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "kernel"
BRANCHES = ("535", "550")
TOOLS = {
    "gcc-12": "gcc-12",
    "make": "make",
    "spatch": "coccinelle",
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "strip": "binutils",
}


@dataclass(frozen=True)
class Kernel:
    """A kernel to boot, and what modules for it are built against."""

    image: Path
    source: Path
    output: Path
    release: str
    version: str
    """Of the package or the build: two kernels of one release may differ."""

    @property
    def identity(self) -> str:
        """What modules built for it depend on."""
        return f"{self.release} {self.version}"


def missing(*names: str) -> str | None:
    """Why tests that need these parts ("linux", "nvidia-535") cannot run here; None if they can."""
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian: {package})"
    for name in names:
        if not (CACHE / name / "VERSION").exists():
            return f"{name} is not here: {_reason(name)}"
    return None


def _reason(name: str) -> str:
    try:
        return (CACHE / f"{name}.unavailable").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return "run scripts/fetch-kernel-sources"


def debian_kernel() -> Kernel:
    """The unpacked Debian kernel."""
    (image,) = (CACHE / "linux" / "boot").glob("vmlinuz-*")
    release = image.name.removeprefix("vmlinuz-")
    headers = CACHE / "linux" / "usr" / "src"
    common = headers / f"linux-headers-{release.removesuffix('-cloud-amd64')}-common"
    version = (CACHE / "linux" / "VERSION").read_text(encoding="ascii").strip()
    return Kernel(image, common, headers / f"linux-headers-{release}", release, version)


def driver_tree(branch: str) -> Path:
    """The vendor's tree of a branch, as it was unpacked; not to be written to."""
    return CACHE / f"nvidia-{branch}"


def built_kernel(tree: Path) -> Kernel:
    """A kernel of one's own, built in its source tree."""
    release = (tree / "include" / "config" / "kernel.release").read_text(encoding="ascii").strip()
    image = tree / "arch" / "x86" / "boot" / "bzImage"
    return Kernel(image, tree, tree, f"{release}-own", hashlib.sha256(image.read_bytes()).hexdigest())
