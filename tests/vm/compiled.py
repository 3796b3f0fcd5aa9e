"""Whether nvidia-uvm compiles with the whole change, and after each patch of the series; nothing is run."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from kmod_patch.build import build
from kmod_patch.errors import KmodError
from kmod_patch.kernel import Headers
from kmod_patch.series import series
from kmod_patch.tree import Tree
from tests.vm import workshop
from tests.vm.sources import Kernel

APPLY_DEADLINE_S = 60.0


def compile_all(tree: Tree, kernel: Kernel) -> str | None:
    """Compile the whole change as `mpsguard-kmod build` does; return why it failed, None if it did not."""
    try:
        with tempfile.TemporaryDirectory(prefix="mpsguard-kmod-") as output:
            build(tree, Headers(kernel.release, kernel.output, kernel.source), Path(output), None)
    except KmodError as error:
        return str(error)
    return None


def compile_each(tree: Tree, kernel: Kernel) -> tuple[int, int, str | None]:
    """Compile after each patch of the series.

    Returns:
        Patches after which nvidia-uvm compiles, all patches, and why the next one failed (None if none did).
    """
    patches = series(tree)
    with tempfile.TemporaryDirectory(prefix="mpsguard-kmod-") as scratch:
        # The patches are for the root of the vendor's repository, if the tree is in one.
        root = Path(scratch)
        work = root / tree.root.name
        workshop.stock_copy(tree.root, kernel, work)
        for done, patch in enumerate(patches):
            try:
                _apply(root if f"a/{work.name}/" in patch.text else work, patch.text)
                workshop.compile_copy(work, kernel)
            except (workshop.BuildError, subprocess.CalledProcessError) as error:
                return done, len(patches), f"{patch.name}: {error}"
    return len(patches), len(patches), None


def _apply(root: Path, patch: str) -> None:
    """As git does it, which is stricter than patch(1)."""
    command = ["git", "apply", "--whitespace=error", "-"]
    subprocess.run(command, cwd=root, input=patch, text=True, check=True, timeout=APPLY_DEADLINE_S)
