"""Building the patched nvidia-uvm in a copy of a driver's tree, and signing it."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from kmod_patch import state
from kmod_patch.errors import BuildError, KernelError, ToolError
from kmod_patch.kernel import Headers, Key
from kmod_patch.patch import make_plan
from kmod_patch.program import run
from kmod_patch.tree import Tree, open_tree

MODULE: Final = "nvidia-uvm.ko"
BUILD_DEADLINE_S: Final = 1800.0
SIGN_DEADLINE_S: Final = 60.0
NEEDED: Final = ("Kbuild", "Makefile", "conftest.sh", "common", "nvidia", "nvidia-uvm")
"""What nvidia-uvm is built from. nvidia.ko is built beside it for the versions of the symbols that nvidia-uvm uses."""
OPTIONAL: Final = ("header-presence-tests.mk", "count-lines.mk", "dkms.conf", state.RECORD)


def build(tree: Tree, headers: Headers, output: Path, key: Key | None) -> Path:
    """The module, in the directory ``output``; the tree is not written to. Raises KmodError; then nothing is left."""
    if not output.is_dir():
        raise BuildError(f"{output}: is not a directory to put {MODULE} into")
    if key is not None:
        require_key(key, headers)
    condition, _ = state.condition(tree)
    with tempfile.TemporaryDirectory(prefix="mpsguard-kmod-") as name:
        copy = copy_tree(tree, Path(name) / "tree")
        if condition == "stock":
            state.apply(make_plan(copy))
        compile_module(copy, headers)
        built = copy.root / MODULE
        if key is not None:
            sign(built, headers, key)
        fresh = output / f".{MODULE}.new"
        shutil.copyfile(built, fresh)
        fresh.rename(output / MODULE)
    return output / MODULE


def copy_tree(tree: Tree, target: Path) -> Tree:
    """What is needed of a tree, at a place that is not there yet."""
    target.mkdir(parents=True)
    for name in (*NEEDED, *OPTIONAL):
        source = tree.root / name
        if source.is_dir():
            shutil.copytree(source, target / name, symlinks=True, ignore=shutil.ignore_patterns("*.o", "*.ko", "*.cmd"))
        elif source.exists():
            shutil.copy2(source, target / name)
        elif name in NEEDED:
            raise BuildError(f"{source}: is missing; nvidia-uvm cannot be built without it")
    return open_tree(target)


def compile_module(tree: Tree, headers: Headers) -> None:
    """Run the driver's own Makefile; raises BuildError with the compiler's first complaint."""
    complete = (tree.root / "nvidia" / "nv-kernel.o_binary").exists()
    if not complete:
        # The repository does not have the vendor's object. Symbol versions do not depend on it, only nvidia.ko does.
        empty = ["gcc", "-c", "-x", "c", "/dev/null", "-o", "nvidia/nv-kernel.o_binary"]
        run(empty, deadline_s=SIGN_DEADLINE_S, failure=ToolError, directory=tree.root)
    command: list[str | Path] = [
        "make",
        f"-j{len(os.sched_getaffinity(0))}",
        "modules",
        "NV_KERNEL_MODULES=nvidia nvidia-uvm",
        f"SYSSRC={headers.source}",
        f"SYSOUT={headers.build}",
    ]
    if not complete:
        command.append("KBUILD_MODPOST_WARN=1")
    run(command, deadline_s=BUILD_DEADLINE_S, failure=BuildError, directory=tree.root)
    if not (tree.root / MODULE).exists():
        raise BuildError(f"make: ended well without {MODULE}")


def require_key(key: Key, headers: Headers) -> None:
    """Raises KernelError if a module could not be signed, before anything is built."""
    for path in (key.private, key.certificate):
        if not os.access(path, os.R_OK):
            raise KernelError(f"{path}: cannot be read; a key in PEM and its certificate in DER or PEM are wanted")
    if not os.access(headers.sign_file, os.X_OK):
        raise KernelError(f"{headers.sign_file}: the kernel's headers have no program to sign modules with")


def sign(module: Path, headers: Headers, key: Key) -> None:
    """Put a signature behind the module; raises KernelError."""
    command: list[str | Path] = [headers.sign_file, "sha256", key.private, key.certificate, module]
    run(command, deadline_s=SIGN_DEADLINE_S, failure=KernelError)
