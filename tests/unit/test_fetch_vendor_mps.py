"""Fetching the vendor's daemon: which apt sources of the machine it goes by, and what it says when it cannot."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from tests import vendor

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fetch-vendor-mps"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module; its name has no ending, so it is loaded by path."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = SourceFileLoader("fetch_vendor_mps", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, loader.name, module)  # dataclasses look their module up
    loader.exec_module(module)
    return module


DEB822 = """\
# a comment
Types: deb deb-src
# a comment between two fields
URIs: http://debian.invalid/debian http://mirror.invalid/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian.gpg

Types: deb
URIs: http://security.invalid/debian-security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://disabled.invalid/debian
Suites: trixie
Components: main

Types: deb
URIs: http://vendor.invalid/
Suites: /
"""


def test_deb822_sources(script: ModuleType) -> None:
    key = "/usr/share/keyrings/debian.gpg"
    assert script._from_deb822(DEB822) == [
        script.Source("http://debian.invalid/debian", key),
        script.Source("http://mirror.invalid/debian", key),
    ]


def test_embedded_key_is_passed_on_as_it_stands(script: ModuleType) -> None:
    key = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n AAAA\n -----END PGP PUBLIC KEY BLOCK-----"
    text = f"Types: deb\nURIs: http://debian.invalid/\nSuites: trixie\nComponents: main\nSigned-By:{key}\n"
    (source,) = script._from_deb822(text)
    assert source.signed_by == key.strip()
    assert f"Signed-By: {key.strip()}\n" in source.stanza("bookworm")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("deb http://debian.invalid/debian bookworm main contrib # note", ""),
        ("deb [arch=amd64 signed-by=/k.gpg] http://debian.invalid/debian stable main", "/k.gpg"),
        ("  deb\thttp://debian.invalid/debian   sid  contrib main", ""),
    ],
)
def test_one_line_source(script: ModuleType, line: str, key: str) -> None:
    assert script._from_one_line(line) == [script.Source("http://debian.invalid/debian", key)]


@pytest.mark.parametrize(
    "line",
    [
        "# deb http://debian.invalid/debian bookworm main",
        "deb-src http://debian.invalid/debian bookworm main",
        "deb http://debian.invalid/debian bookworm-security main",
        "deb http://other.invalid/apt jammy main",
        "deb http://debian.invalid/debian bookworm contrib # main",
        "deb [trusted=yes] ./ /",
    ],
)
def test_other_lines_are_no_source(script: ModuleType, line: str) -> None:
    assert script._from_one_line(line) == []


def test_trust_is_not_taken_over(script: ModuleType) -> None:
    (source,) = script._from_one_line("deb [trusted=yes] http://debian.invalid/debian bookworm main")
    assert "trusted" not in source.stanza("trixie").lower()


@pytest.mark.parametrize("branch", vendor.BRANCHES)
def test_without_a_debian_source_it_is_unavailable(script: ModuleType, branch: str) -> None:
    with pytest.raises(script.UnavailableError, match="no Debian suite"):
        script.fetch(branch, [])


def test_reason_is_one_line_and_kept_for_the_tests(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "CACHE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # no apt-get here
    monkeypatch.setattr(sys, "argv", ["fetch-vendor-mps"])
    assert script.main() == script.UNAVAILABLE
    assert capsys.readouterr().err.splitlines() == [
        f"nvidia-cuda-mps {branch}: unavailable: this machine has no apt-get" for branch in vendor.BRANCHES
    ]
    assert vendor.find("535", tmp_path) == "vendor MPS 535 is not here: this machine has no apt-get"


def test_what_is_there_is_not_fetched_again(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for branch in vendor.BRANCHES:
        (tmp_path / branch).mkdir()
        (tmp_path / branch / "VERSION").write_text(f"{branch}.1\n", encoding="ascii")
    monkeypatch.setattr(script, "CACHE", tmp_path)
    monkeypatch.setattr(script, "fetch", None)  # would raise if called
    monkeypatch.setattr(sys, "argv", ["fetch-vendor-mps"])
    assert script.main() == 0


def test_half_unpacked_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "550" / "usr" / "bin").mkdir(parents=True)
    assert vendor.find("550", tmp_path) == "vendor MPS 550 is not here: run scripts/fetch-vendor-mps"
    (tmp_path / "550" / "VERSION").write_text("550.1\n", encoding="ascii")
    assert "is not whole" in str(vendor.find("550", tmp_path))


def test_script_and_tests_mean_the_same_branches(script: ModuleType) -> None:
    assert tuple(script.SUITE_OF_BRANCH) == vendor.BRANCHES
    assert script.CACHE == vendor.CACHE
