"""What is imported is asked for in pyproject.toml by itself, not left to what another package happens to need."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.harness.tree import ROOT, is_python, tracked

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: Mapping[str, list[str]] = PROJECT["optional-dependencies"]
OWN = {"distribution", "examples", "fault_injection", "kmod_patch", "mpsguard", "tests"}

OF_EXTRA = {
    "mpsguard/guard/broker": "daemon",
    "mpsguard/cli/dashboard": "top",
    "mpsguard/guard/control_api": "daemon",
    "mpsguard/guard/daemon": "daemon",
    "mpsguard/guard/dropin": "device-plugin",
    "mpsguard/images": "images",
    "mpsguard/guard/incidents": "daemon",
    "mpsguard/guard/kubernetes": "kubernetes",
    "mpsguard/guard/metrics": "daemon",
    "mpsguard/guard/sensors": "daemon",
    "distribution": "dist",
}
"""Folders that run where this extra is installed."""
NOT_ASKED_FOR = {
    "_typeshed": "of type checkers",
    "setuptools": "the build's",
    "torch": "the application's own",
    "transformers": "the application's own",
}


def normal(requirement: str) -> str:
    """The name in a requirement, as PEP 503 compares it."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found.group()).lower()


def asked_for(extra: str) -> Iterator[str]:
    """The names that an extra brings, with those of the project itself."""
    for requirement in [*PROJECT["dependencies"], *EXTRAS[extra]]:
        if own := re.match(r"mpsguard\[([^]]*)\]", requirement):
            for each in own.group(1).split(","):
                yield from asked_for(each)
        else:
            yield normal(requirement)


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def missing(folder: str, names: set[str]) -> list[tuple[str, str]]:
    """The imports below a folder that none of these distributions has, each with its file."""
    distributions = packages_distributions()
    return sorted(
        (str(path.relative_to(ROOT)), module)
        for path in tracked()
        if path.is_relative_to(ROOT / folder) and is_python(path)
        for module in {*imported(path)} - sys.stdlib_module_names - OWN - NOT_ASKED_FOR.keys()
        # One that is not installed here cannot be told from its distribution's name.
        if module in distributions and not {normal(each) for each in distributions[module]} & names
    )


@pytest.mark.parametrize(("folder", "extra"), OF_EXTRA.items())
def test_a_folder_imports_what_its_extra_asks_for(folder: str, extra: str) -> None:
    assert missing(folder, {*asked_for(extra)}) == []


def test_everything_that_is_imported_is_asked_for() -> None:
    assert missing(".", {name for extra in EXTRAS for name in asked_for(extra)}) == []
