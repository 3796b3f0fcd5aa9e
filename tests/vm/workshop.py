"""Builds nvidia-uvm, stock and patched, and the mock GPU for it; each build is kept, keyed by what went into it.

A tree is copied once for each kernel and build type. The stock module is built in it, then kmod_patch is applied in
place and what it touched is built again. Results go to the user's cache directory, where the next clone of this
repository finds them. So do the results of the driver's tests of the kernel (`conftest`), which take longer than the
compilation and depend on the kernel, the compiler and the driver's own lists alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.kept import KEPT, digest
from tests.vm.sources import CACHE, ROOT, Kernel

MOCK = ROOT / "fault_injection" / "mock_gpu"
PATCH = ROOT / "kmod_patch"
PATCH_PARTS = (PATCH / "source", PATCH / "rules", PATCH / "rules.py", PATCH / "patch.py", PATCH / "tree.py")
BUILD_DEADLINE_S = 2400.0
"""Some four minutes on two quiet cores; ten times as long beside busy neighbours."""
JOBS = "-j2"
COMPILER = "gcc-12"
"""Of the Debian kernel."""
FILES = ("nvidia.ko", "nvidia-uvm.ko")


@dataclass(frozen=True)
class Modules:
    """A directory with the mock GPU (nvidia.ko), nvidia-uvm.ko and nvidia-uvm.symbols (all its symbols)."""

    directory: Path
    tree: Path
    """Where the headers of the driver's ioctls are: untouched."""

    @property
    def mock(self) -> Path:
        """The mock GPU."""
        return self.directory / "nvidia.ko"

    @property
    def uvm(self) -> Path:
        """nvidia-uvm."""
        return self.directory / "nvidia-uvm.ko"


class BuildError(Exception):
    """A build that failed: its last lines."""


def build(tree: Path, kernel: Kernel, *, patched: bool, debug: bool = False) -> Modules:
    """The modules of this tree for this kernel; raises BuildError."""
    kind = "debug" if debug else "release"
    own = digest(tree / "nvidia-uvm", tree / "common", kernel.identity, kind)
    base = digest(own, MOCK)
    key = digest(base, *PATCH_PARTS) if patched else base
    name = f"{tree.name}-{kernel.release}-{kind}-{'patched' if patched else 'stock'}-{key}"
    modules = Modules(KEPT / "modules" / name, tree)
    # Not by the mock GPU: where that alone changed, that alone is compiled.
    work = CACHE / "work" / f"{tree.name}-{kernel.release}-{kind}-{own}"
    with _locked(work):
        if not modules.uvm.exists():
            conftest = KEPT / "conftest" / _conftest_key(tree, kernel)
            _prepare(tree, work, conftest)
            if patched:
                _apply(work)
            _make(work, kernel, kind)
            _keep_conftest(work, conftest)
            _keep(work, modules.directory)
    return modules


def stock_copy(tree: Path, kernel: Kernel, work: Path) -> None:
    """Copy a tree to `work`, a new path, with the mock GPU in place of nvidia.ko; nvidia-uvm is as it came."""
    _prepare(tree, work, KEPT / "conftest" / _conftest_key(tree, kernel))


def compile_copy(work: Path, kernel: Kernel) -> None:
    """Compile what is new in such a copy; raises BuildError."""
    _make(work, kernel, "release")


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    work.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{work}.lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _conftest_key(tree: Path, kernel: Kernel) -> str:
    """Key of the results of the driver's tests of the kernel."""
    compiler = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True, timeout=60.0).stdout
    lists = [*tree.glob("*.mk"), *(tree / name / f"{name}.Kbuild" for name in ("nvidia", "nvidia-uvm"))]
    return digest(tree / "conftest.sh", tree / "Kbuild", *sorted(lists), kernel.identity, compiler)


def _keep_conftest(work: Path, target: Path) -> None:
    """Keep the results, with their times: make goes by these."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".conftest-", dir=target.parent) as scratch:
        fresh = Path(scratch) / "conftest"
        shutil.copytree(work / "conftest", fresh)
        # Another build of the same key may have been first.
        with contextlib.suppress(OSError):
            fresh.rename(target)


def _prepare(tree: Path, work: Path, conftest: Path) -> None:
    """The tree with the mock GPU in place of nvidia.ko, and nvidia-uvm as it came."""
    if not (work / "Kbuild").exists():
        fresh = Path(f"{work}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        ignored = shutil.ignore_patterns("nvidia-drm", "nvidia-modeset", "nvidia-peermem", "*.o_binary", "debian")
        shutil.copytree(tree, fresh, ignore=ignored, symlinks=True)
        _copy_mock(fresh)
        if conftest.exists():
            shutil.copytree(conftest, fresh / "conftest")
        _run([COMPILER, "-c", "-x", "c", "/dev/null", "-o", "nvidia/nv-kernel.o_binary"], fresh)
        fresh.rename(work)
        return
    _copy_mock(work)
    # What an earlier version of the patch did is undone; files that did not change keep their time.
    stock = {path.relative_to(tree) for path in (tree / "nvidia-uvm").rglob("*") if path.is_file()}
    for name in stock:
        _copy_if_new(tree / name, work / name)
    for path in list((work / "nvidia-uvm").rglob("*.[ch]")):
        if path.relative_to(work) not in stock and not path.name.endswith(".mod.c"):
            path.unlink()
    shutil.rmtree(work / ".mpsguard-kmod", ignore_errors=True)


def _copy_mock(work: Path) -> None:
    """Put the mock GPU in place of nvidia.ko's sources."""
    target = work / "nvidia" / "mock_gpu"
    for old in target.glob("*.[ch]"):
        if not (MOCK / old.name).exists():
            old.unlink()
    for source in (path for path in MOCK.iterdir() if path.is_file()):
        _copy_if_new(source, target / source.name)
    _copy_if_new(MOCK / "mock-sources.Kbuild", work / "nvidia" / "nvidia-sources.Kbuild")


def _copy_if_new(source: Path, target: Path) -> None:
    """Copy unless the same is there, which keeps its time: make goes by that."""
    if not target.exists() or target.read_bytes() != source.read_bytes():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _apply(work: Path) -> None:
    _run([sys.executable, "-m", "kmod_patch", "apply", str(work)], ROOT, PYTHONPATH=str(ROOT))


def _make(work: Path, kernel: Kernel, kind: str) -> None:
    _run(
        [
            "make",
            JOBS,
            "modules",
            "NV_KERNEL_MODULES=nvidia nvidia-uvm",
            f"SYSSRC={kernel.source}",
            f"SYSOUT={kernel.output}",
            f"NV_BUILD_TYPE={kind}",
            f"UVM_BUILD_TYPE={kind}",
            f"CC={COMPILER}",
        ],
        work,
    )


def _keep(work: Path, target: Path) -> None:
    fresh = Path(f"{target}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name in FILES:
        _run(["strip", "--strip-debug", "-o", str(fresh / name), name], work)
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)


def _run(command: list[str], directory: Path, **more: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, "LC_ALL": "C", **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=BUILD_DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} did not end within {BUILD_DEADLINE_S:.0f} s") from None
    if done.returncode != 0:
        lines = done.stdout.splitlines()
        told = [line for line in lines if "error" in line.lower() and len(line) < 1000]
        raise BuildError("\n".join([" ".join(command), *told[:20], *lines[-15:]]))
