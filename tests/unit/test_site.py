"""The site of the documentation: its menu has every page, it is built without a warning, and loads nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpsguard.cli.session import Exit
from tests.harness.tree import ROOT, tracked

DOCS = ROOT / "docs"
_, _, NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
IN_NAV = re.findall(r": ([\w/.-]+\.md)$", NAV, re.MULTILINE)


def test_every_page_is_in_the_menu_once() -> None:
    pages = {str(path.relative_to(DOCS)) for path in tracked() if path.is_relative_to(DOCS) and path.suffix == ".md"}
    assert sorted(pages - set(IN_NAV)) == [], "add them to `nav` in mkdocs.yml"
    assert sorted(IN_NAV) == sorted(pages)


def test_every_exit_code_is_on_its_page() -> None:
    page = (DOCS / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    assert [int(code) for code in re.findall(r"^\| (\d) \|", page, re.MULTILINE)] == sorted(Exit)


def test_pictures_are_small() -> None:
    pictures = [path for path in (DOCS / "images").iterdir() if path.suffix == ".png"]
    assert pictures
    assert [path.name for path in pictures if path.stat().st_size >= 150_000] == []


@pytest.mark.slow(seconds=10, reason="builds the site")
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_another_host(tmp_path: Path) -> None:
    done = subprocess.run(
        # Without --quiet, with which warnings are not counted.
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(IN_NAV)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|img|link|iframe)[^>]* (?:src|href)=\"?(?:https?:)?//", text), page
        # What Python-Markdown did not take for a table or for code.
        plain = re.sub(r"<(pre|code)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r"\| *---|```", plain), page
    assert "open_or_create" in (tmp_path / "reference" / "python.html").read_text(encoding="utf-8")
