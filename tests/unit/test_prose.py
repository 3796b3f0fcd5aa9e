"""Comments and docstrings are in plain technical English: a process or a user is an *it*, and has a name."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.tree import ROOT, is_python, tracked

# A reader has to guess what these stand for; "the client", "no process", "the user that asked" say it.
PRIVATE = re.compile(r"\b(whoever|whomever|whose|whom|nobody|somebody|anybody|everybody|who)\b", re.IGNORECASE)

CLEAN = ("distribution", "examples", "fault_injection", "kmod_patch", "mpsguard", "scripts", "tests")
"""The folders that keep to it. In kmod_patch, Python only: its C is shown to kernel maintainers as it is."""


def prose(path: Path) -> Iterator[str]:
    """The comments and docstrings of a file, each with its line."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT)
    if is_python(path):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            is_docstring = token.type == tokenize.STRING and token.string.lstrip("rR").startswith('"""')
            if token.type == tokenize.COMMENT or is_docstring:
                yield f"{name}:{token.start[0]}: {token.string}"
    elif path.suffix in {".c", ".h", ".cu", ".cuh", ".S"} and name.parts[0] != "kmod_patch":
        for found in re.finditer(r"//[^\n]*|/\*.*?\*/", text, re.DOTALL):
            yield f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found.group()}"


@pytest.mark.parametrize("folder", CLEAN)
def test_no_private_language(folder: str) -> None:
    names = {path: path.relative_to(ROOT) for path in tracked()}
    files = [path for path, name in names.items() if name.parts[0] == folder]
    assert [text for path in files for text in prose(path) if PRIVATE.search(text)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [('"""Wake whoever waits."""\n', 1), ("x = 1  # nobody's\n", 1), ('x = "whose"\n', 0), ("# The whole.\n", 0)],
)
def test_the_rule_on_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, found: int) -> None:
    monkeypatch.setattr("tests.unit.test_prose.ROOT", tmp_path)
    path = tmp_path / "sample.py"
    path.write_text(text)
    assert sum(bool(PRIVATE.search(each)) for each in prose(path)) == found
