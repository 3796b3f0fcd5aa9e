"""Every relative link of a Markdown page, and every page of docs/ that the code names, is there."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")
NAMED_FILE = re.compile(
    r"`((?:distribution|mpsguard|kmod_patch|scripts|tests|fault_injection|docs|examples)/[\w./-]*\w)`(?!\w)"
)
"""A path from the top of the repository, in backticks."""
MENTION = re.compile(r"(?<![\w/.-])docs/[\w./-]+\.md\b")


def _tracked(*patterns: str) -> list[Path]:
    """Tracked and new files, without those that are ignored or deleted."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=60.0,
    )
    paths = sorted({ROOT / name.decode() for name in listed.stdout.split(b"\0") if name})
    return [path for path in paths if path.is_file()]


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page; a repeated heading gets `-1`, `-2`, ..."""
    text = page.read_text(encoding="utf-8")
    anchors = set(ANCHOR.findall(text))
    for heading in HEADING.findall(re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)):
        shown = LINK.sub("]", heading).lower()
        name = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        count = 0
        while (anchor := f"{name}-{count}" if count else name) in anchors:
            count += 1
        anchors.add(anchor)
    return anchors


PAGES = _tracked("*.md")
TRUE_NOW = [page for page in PAGES if page.name != "CHANGELOG.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", TRUE_NOW, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    named = NAMED_FILE.findall(page.read_text(encoding="utf-8"))
    assert [name for name in named if not re.search(r"[A-Z]{4}", name) and not (ROOT / name).exists()] == []


def test_every_page_that_code_or_text_names_is_there() -> None:
    missing = set()
    for path in _tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        missing |= {f"{path.relative_to(ROOT)}: {name}" for name in MENTION.findall(text) if not (ROOT / name).exists()}
    assert missing == set()


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert {page for page in pages - {"README.md"} if f"({page})" not in index} == set()


ARCHITECTURE = (ROOT / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8")


def _functions(path: Path) -> set[str]:
    """Names of the functions of a module, those of classes as `Class.function`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        found |= {f"{prefix}{each.name}" for each in inner if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return found


def test_the_functions_that_the_architecture_walks_through_are_there() -> None:
    steps = re.findall(r"^\| \d+ \| `([\w.]+)` \| `([\w/.]+)` \|", ARCHITECTURE, re.MULTILINE)
    assert len(steps) > 40
    assert [(name, path) for name, path in steps if name not in _functions(ROOT / path)] == []


def test_every_layer_is_in_the_architecture() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    named = [
        f"{container}.{name.strip()}"
        for contract in contracts
        if contract["type"] == "layers"
        for container in contract["containers"]
        for layer in contract["layers"]
        for name in layer.split("|")
    ]
    assert named
    assert [name for name in named if f"`{name}`" not in ARCHITECTURE] == []
