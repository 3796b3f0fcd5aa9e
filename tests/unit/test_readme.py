"""What the README tells its reader is so: configuration, exit codes, commands."""

from __future__ import annotations

import re
from pathlib import Path

from mpsguard import config
from mpsguard.cli.ctl import COMMANDS
from mpsguard.cli.session import Exit

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_configuration_example_is_valid() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    config.parse(example.encode(), "README.md")


def test_every_exit_code_is_in_the_table() -> None:
    codes = [int(code) for code in re.findall(r"^\| (\d) \|", README, re.MULTILINE)]
    assert codes == sorted(Exit)


def test_every_command_is_named() -> None:
    (section,) = re.findall(r"^## mpsguard-ctl\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)
    assert [name for name in COMMANDS if f"`{name}" not in section] == []


def test_the_make_targets_named_are_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"^ +make ([a-z]+)", README, re.MULTILINE)) == {"demo", "test"}
    assert {"demo", "test"} <= targets


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_first_screen_has_the_two_commands_and_the_demo() -> None:
    first_screen = "\n".join(README.splitlines()[:30])
    assert all(text in first_screen for text in ("make demo", "make test", "<!-- demo:begin -->"))
