"""The house rules that a machine can check, over every file that is or would be tracked."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.harness.tree import ROOT, is_python, text_of, tracked

LONGEST = 400
TYPED = ("distribution", "examples", "fault_injection", "kmod_patch", "mpsguard", "tests")


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def is_too_long(text: str) -> bool:
    lines = text.splitlines()
    return len(lines) > LONGEST and not any(re.match(r"# long: \S", line) for line in lines[:5])


def forbidden(text: str) -> str | None:
    """Return the first thing in the text that must not be in the project's files."""
    # Put together here, or this file would be the first to break the rule.
    literal = [
        "/".join(["", "work", ""]),
        "/".join(["", "root", ""]),
        ".".join(["pypi", "org"]),
        ".".join(["pythonhosted", "org"]),
        ".".join(["deb", "debian", "org"]),
        ".".join(["security", "debian", "org"]),
        ".".join(["snapshot", "debian", "org"]),
        ".".join(["registry", "npmjs", "org"]),
        ".".join(["proxy", "golang", "org"]),
        ".".join(["crates", "io"]),
    ]
    for word in literal:
        if word in text:
            return word
    return next((found.group() for pattern in VENDOR_COPYRIGHT if (found := pattern.search(text))), None)


VENDOR = "NVIDIA"

# A header of a vendor's source file: our code is our own, the vendor's stays where the user has it.
VENDOR_COPYRIGHT = [
    re.compile(r"copyright[^\n]{0,60}\bnvidia\b", re.IGNORECASE),
    re.compile(r"\bnvidia corporation\b[^\n]{0,60}(all rights reserved|proprietary)", re.IGNORECASE),
]


def test_no_python_file_is_too_long() -> None:
    assert names([path for path in tracked() if is_python(path) and is_too_long(text_of(path))]) == []


def test_bench_and_harness_hold_nothing_that_pytest_runs() -> None:
    apart = [path for folder in ("bench", "harness") for path in (ROOT / "tests" / folder).rglob("*.py")]
    assert apart
    assert names([path for path in apart if path.stem.startswith("test_") or path.stem.endswith("_test")]) == []


def test_every_directory_with_python_is_a_package() -> None:
    """mypy checks packages: a directory without __init__.py would go unseen, or under another name."""
    inside = [path for path in tracked() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in TYPED]
    directories = sorted({path.parent for path in inside})
    assert names([directory for directory in directories if not (directory / "__init__.py").exists()]) == []


def test_types_are_shipped() -> None:
    assert (ROOT / "mpsguard" / "py.typed").exists()


def test_nothing_of_this_machine_or_of_others_is_in_the_tree() -> None:
    assert [(name, word) for path in tracked() for name in names([path]) if (word := forbidden(text_of(path)))] == []


def test_programs_are_executable() -> None:
    with_interpreter = [path for path in tracked() if path.suffix == "" and text_of(path).startswith("#!")]
    assert names([path for path in with_interpreter if not path.stat().st_mode & 0o100]) == []


def test_text_is_clean() -> None:
    """One newline at the end, no Windows line ends."""
    texts = {path: text_of(path) for path in tracked() if path.suffix not in {".png", ".gz", ".svg"}}
    bad = [path for path, text in texts.items() if "\r" in text or (text and not text.endswith("\n"))]
    assert names(bad) == []


@pytest.mark.parametrize(
    ("text", "too_long"),
    [
        ("x\n" * LONGEST, False),
        ("x\n" * (LONGEST + 1), True),
        ("# long: one table\n" + "x\n" * LONGEST, False),
        ("# long:\n" + "x\n" * LONGEST, True),
        ("x\n" * LONGEST + "# long: said too late\n", True),
    ],
)
def test_the_rule_on_length(text: str, too_long: bool) -> None:
    assert is_too_long(text) == too_long


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("/".join(["cd ", "work", "main"]), True),
        ("a network/workspace", False),
        (f"Copyright (c) 2016-2023 {VENDOR} CORPORATION", True),
        (f"SPDX-FileCopyrightText: Copyright (c) 2024 {VENDOR}", True),
        (f"the {VENDOR} driver", False),
        (".".join(["https://files", "pythonhosted", "org"]), True),
    ],
)
def test_the_rule_on_words(text: str, bad: bool) -> None:
    assert (forbidden(text) is not None) == bad


SHARED_NAMES = {
    "Arguments": "each command of the control API has its own, named by its module",
    "DamagedError": "the journal's and an image's, each with its own base",
    "Done": "a message of two protocols, the vault's and the supervisor channel's",
    "Manifest": "the saved form of a session: the vault's in memory, an image's on disk",
    "QuotaError": "the vault's and a store's, each with its own base",
    "Ready": "a message of two protocols, the vault's and the supervisor channel's",
    "_Message": "the base of each protocol's messages",
}


def test_a_class_name_means_one_thing() -> None:
    where: dict[str, set[str]] = {}
    for path in tracked():
        if is_python(path) and path.relative_to(ROOT).parts[0] == "mpsguard":
            for node in ast.walk(ast.parse(text_of(path))):
                if isinstance(node, ast.ClassDef):
                    where.setdefault(node.name, set()).add(str(path.relative_to(ROOT)))
    twice = {name: sorted(files) for name, files in where.items() if len(files) > 1 and name not in SHARED_NAMES}
    assert twice == {}
