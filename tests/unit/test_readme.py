"""What the README tells its reader is so: configuration, exit codes, commands, links; and it stays short."""

from __future__ import annotations

import re
from pathlib import Path

from mpsguard import __version__
from mpsguard.cli.ctl import COMMANDS
from mpsguard.cli.session import Exit
from mpsguard.guard import config
from tests.bench.results import reference

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_LINES = 150


def test_configuration_example_is_valid() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    config.parse(example.encode(), "README.md")


def test_every_exit_code_is_in_the_table() -> None:
    codes = [int(code) for code in re.findall(r"^\| (\d) \|", README, re.MULTILINE)]
    assert codes == sorted(Exit)


def test_the_commands_named_are_there() -> None:
    named = set(re.findall(r"mpsguard-ctl ([a-z]+)", README))
    assert named
    assert named <= set(COMMANDS)


def test_the_make_targets_named_are_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"^ +make ([a-z]+)", README, re.MULTILINE)) == {"demo", "test"}
    assert {"demo", "test"} <= targets


def test_the_first_screen_has_the_two_commands_and_the_demo() -> None:
    first_screen = "\n".join(README.splitlines()[:30])
    assert all(text in first_screen for text in ("make demo", "make test", "<!-- demo:begin -->"))


def test_the_demo_has_this_version() -> None:
    assert f"\nmpsguard {__version__} healthy for Ns\n" in README


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= MOST_LINES


def test_the_generated_pages_are_up_to_date() -> None:
    stale = [str(path) for path, text in reference.pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run scripts/reference"


def test_every_configuration_key_says_what_it_is_for() -> None:
    rows = [line.split(" | ") for line in reference.configuration().splitlines() if line.startswith("| `")]
    assert [cells[0] for cells in rows if not cells[-1].strip(" |")] == []
