"""The steps of the package's build that make its C libraries (`tool.setuptools` in pyproject.toml names them)."""

import runpy
from pathlib import Path
from typing import Final

from setuptools import Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# By path: the package cannot be imported while it is being built.
_BUILD: Final = runpy.run_path(str(Path(__file__).resolve().with_name("build.py")))
_LIBRARIES: Final = {
    "mpsguard.preload.libmpsguard": _BUILD["PRELOAD"],
    "mpsguard.vault.client.torch_regions.libmpsguard_pool": _BUILD["POOL"],
}


class PlainWheel(bdist_wheel):
    """Makes a wheel for every Python 3: what is compiled is no module of a Python, but needs the machine's kind."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python, its binary interface, platform."""
        _, _, platform = super().get_tag()
        return "py3", "none", platform


class BuildPreload(build_ext):
    """Builds a plain shared library under its own name where setuptools would build a Python module."""

    def get_ext_filename(self, fullname: str) -> str:
        """Path below the build directory: without Python's version in it."""
        return f"{fullname.replace('.', '/')}.so"

    def build_extension(self, ext: Extension) -> None:
        """Compile; a machine without a compiler gets the package without the library."""
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _BUILD["compile_library"](_LIBRARIES[ext.name], target)
        except _BUILD["CompilerError"] as error:
            if not ext.optional:
                raise
            self.warn(f"{target.name} is not built: {error}")
