"""The program as a tree that runs from any directory: interpreter, packages, commands, manual pages, completion."""

import gzip
import importlib
import shutil
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import click
from click_man.core import write_man_pages

import mpsguard
from distribution import interpreter, sources
from distribution.commands import call
from distribution.interpreter import Interpreter
from distribution.sources import ROOT

PREFIX: Final = "/usr/lib/mpsguard"
"""Where deb and rpm have the tree."""

_EXTRAS: Final = "daemon,images,snapshot,top"
"""What its commands need; not `kubernetes` and `device-plugin`: these programs run in containers of their own."""

_DOCUMENTS: Final = ("CHANGELOG.md", "README.md", "docs", "examples", ":(exclude)examples/demo")
"""As the repository has them, so that what they call each other is true. The demo needs more of the repository."""

_SHELLS: Final = {
    "bash": "bash-completion/completions/{name}",
    "fish": "fish/vendor_completions.d/{name}.fish",
    # Debian's zsh and the others' look into different directories.
    "zsh": "zsh/vendor-completions/_{name}",
}
# Isolated: what a user has in PYTHONPATH or its home directory is not for a program that root runs.
_LAUNCHER: Final = """\
#!{prefix}/bin/python3 -I
import sys

from {module} import {function}

sys.exit({function}())
"""


def build(tree: Path, wheel: Path, cache: Path, made_at: int, environment: dict[str, str]) -> Interpreter:
    """Make the tree.

    Args:
        tree: An empty directory.
        wheel: The project, as a wheel.
        cache: Where downloads are kept between builds.
        made_at: Time that the manual pages bear, in seconds since 1970.
        environment: All variables for the programs that build.

    Returns:
        The interpreter in it.

    Raises:
        BuildError: A part of it cannot be had.
    """
    python = interpreter.unpack(tree, cache)
    packages = tree / "lib" / "python3" / "dist-packages"
    # This pip, for that interpreter.
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python.program,
        "--quiet",
        "--disable-pip-version-check",
    ]
    options: list[str | Path] = ["--no-compile", "--no-input", "--root-user-action=ignore", "--target", packages]
    call([*pip, "install", *options, f"{wheel}[{_EXTRAS}]"], environment=environment)
    # Of no use to a program, and a fifth of all.
    for tests in [*packages.glob("numpy/**/tests"), *packages.glob("numpy/_core/include")]:
        shutil.rmtree(tests, ignore_errors=True)
    # Commands of other packages, with the interpreter's present path.
    shutil.rmtree(packages / "bin", ignore_errors=True)
    # Where the build took place, and checksums of those commands; the package manager has its own.
    for name in ("direct_url.json", "RECORD"):
        for path in packages.glob(f"*.dist-info/{name}"):
            path.unlink()
    _write_commands(tree)
    _write_manual(tree / "share" / "man" / "man1", made_at)
    _write_completion(tree, python, environment)
    documents = tree / "share" / "doc" / "mpsguard"
    shutil.copyfile(ROOT / "LICENSE", documents / "copyright")
    sources.copy(_DOCUMENTS, documents)
    _compile(tree, python, environment)
    return python


def _write_commands(tree: Path) -> None:
    for entry in entry_points(group="console_scripts"):
        if entry.dist is not None and entry.dist.name == "mpsguard":
            path = tree / "bin" / entry.name
            path.write_text(_LAUNCHER.format(prefix=PREFIX, module=entry.module, function=entry.attr), encoding="utf-8")
            path.chmod(0o755)


def _groups() -> dict[str, click.Group]:
    """The project's commands that click draws, by the names they are called by."""
    entries = [each for each in entry_points(group="console_scripts") if each.module.startswith("mpsguard.")]
    loaded = {entry.name: getattr(importlib.import_module(entry.module), entry.attr) for entry in entries}
    return {name: command for name, command in sorted(loaded.items()) if isinstance(command, click.Group)}


def _write_manual(directory: Path, made_at: int) -> None:
    directory.mkdir(parents=True)
    date = time.strftime("%Y-%m-%d", time.gmtime(made_at))
    for name, group in _groups().items():
        write_man_pages(
            name, _with_commands(group, name), version=mpsguard.__version__, target_dir=directory, date=date
        )
    for page in sorted(directory.iterdir()):
        Path(f"{page}.gz").write_bytes(gzip.compress(page.read_bytes(), mtime=made_at))
        page.unlink()


def _with_commands(group: click.Group, name: str) -> click.Group:
    """The same group with all its commands loaded: click-man asks it for no name that it does not show."""
    context = click.Context(group, info_name=name)
    for each in group.list_commands(context):
        command = group.get_command(context, each)
        assert command is not None
        group.add_command(_with_commands(command, each) if isinstance(command, click.Group) else command, each)
    return group


def _write_completion(tree: Path, python: Interpreter, environment: dict[str, str]) -> None:
    for name in _groups():
        variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
        for shell, place in _SHELLS.items():
            asked = {**environment, variable: f"{shell}_source"}
            script = call([python.program, "-I", tree / "bin" / name], environment=asked)
            path = tree / "share" / place.format(name=name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(script, encoding="utf-8")


def _compile(tree: Path, python: Interpreter, environment: dict[str, str]) -> None:
    """Compile all modules: the packages own every file, and root's first call leaves none behind.

    Unchecked: a file's time is the package's business, and a start is some milliseconds faster.
    """
    # What ran above has left files that are checked; the compiler would write such ones of the modules that it uses.
    for directory in [*tree.glob("lib/**/__pycache__")]:
        shutil.rmtree(directory)
    options: list[str | Path] = [
        "-q",
        "-j",
        "0",
        "--invalidation-mode",
        "unchecked-hash",
        "-s",
        tree,
        "-p",
        PREFIX,
    ]
    call([python.program, "-I", "-B", "-m", "compileall", *options, tree / "lib"], environment=environment)
