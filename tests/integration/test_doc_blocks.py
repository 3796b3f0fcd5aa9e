"""Blocks of the documentation: configurations are loaded, programs compiled, and commands run against a guard.

A command that cannot be run here has its reason in `NOT_RUN`; one that is neither run nor there fails.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mpsguard.guard import config
from mpsguard.guard.daemon.http_service import socket_path
from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
PLAYED = {"docs/start/try-it.md", "docs/guides/survive.md"}
"""Run as a whole by `test_docs.py`."""
GENERATED = {"docs/results/SUMMARY.md", "docs/reference/commands.md"}
"""Made of what is tested elsewhere: which measurement a row is from, and help texts."""
SHOWN = {"dockerfile", "ini", "json", "mermaid", "promql", "text", "yaml"}
"""Languages of blocks that show something."""

HOST = "acts on this machine's own services"
READERS = "a program of the reader's"
NOT_RUN = {
    "./program": READERS,
    "./your-cuda-program": READERS,
    "buildah": "not on every machine; run by tests/integration/systemd/test_bare_debian.py",
    "dmesg": "reads this machine's kernel log",
    "echo": "ends the MPS of this machine",
    "exec": "needs a service; run by tests/integration/sim/test_count_server.py",
    "helm": "needs a cluster",
    "journalctl": HOST,
    "kubectl": "needs a cluster",
    "make": "runs the tests, of which this is one",
    "mpsguard pool": "serves until it is ended; run by tests/integration/pool",
    "mpsguard run -- mpsguard pool": "serves until it is ended; run by tests/integration/pool",
    "mpsguard run --image": READERS,
    "mpsguard run --config": "serves until it is ended; run by tests/integration/sim/test_count_server.py",
    "mpsguard run --standby 1 --class": f"{READERS}; run by tests/integration/sim/test_run_standby.py",
    "mpsguard-ctl image": "needs files and another machine; run by tests/integration/images/test_installed_alone.py",
    "mpsguard-ctl move": "needs such a program; run by tests/integration/second_driver/test_moves_through_guard.py",
    "mpsguard-ctl resize": "needs such a program; run by tests/integration/sim/test_resize.py",
    "mpsguard-ctl rightsize": f"{READERS}; run by tests/integration/sim/test_rightsize.py",
    "mpsguard-ctl snapshot": f"{READERS}; run by tests/integration/preload/test_snapshot.py",
    "mpsguard-ctl top": "needs a terminal; run by tests/integration/sim/test_top.py",
    "mpsguard-ctl vault release": f"{READERS}; run by tests/integration/sim/test_vault.py",
    "mpsguard-kmod": "needs a driver's source tree; run by tests/vm",
    "node-problem-detector": "needs a cluster",
    "pip": "installs",
    "promtool": "not on every machine; run by tests/integration/sim/test_monitoring.py",
    "python -m examples.checkpointed": "run by tests/integration/checkpoints/test_restore.py",
    "scontrol": "needs a cluster",
    "scripts/gpu-suite": "needs a GPU",
    "ssh": "needs another machine",
    "sudo apt": "changes this machine",
    "sudo dnf": "changes this machine",
    "sudo ./mpsguard-*-linux-amd64/scripts/install": "run in a bare machine by tests/integration/systemd",
    "sudo ln": "changes this machine",
    "sudo scripts/install": "changes this machine; run in a booted one by tests/integration/systemd",
    "systemctl": HOST,
    "tar": "needs a bundle; run in a bare machine by tests/integration/systemd",
    "sudo systemctl": HOST,
}
"""Beginnings of commands that are not run here, and why."""
FINE = {0, 3, 4}
"""Exit codes of a command that could be run: `status` and `doctor` judge this machine."""


class Block(NamedTuple):
    """A block of code on a page."""

    page: str
    line: int
    language: str
    text: str


def blocks() -> Iterator[Block]:
    """Every block, fenced or, outside of lists, indented; an indented one is of commands."""
    for path in PAGES:
        page, text = str(path.relative_to(REPOSITORY)), path.read_text(encoding="utf-8")
        fenced = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
        for found in fenced.finditer(text):
            yield Block(page, text.count("\n", 0, found.start()) + 1, found[2], textwrap.dedent(found[3]))
        rest = fenced.sub(lambda found: "\n" * found[0].count("\n"), text)
        for found in re.finditer(r"(?<=\n\n)(?: {4}[^\n]*\n)+", rest):
            if not re.search(r"^(?:\d+\.|\*|-) [^\n]*\n(?:(?: [^\n]*)?\n)*\Z", rest[: found.start()], re.MULTILINE):
                yield Block(page, rest.count("\n", 0, found.start()) + 1, "sh", textwrap.dedent(found[0]))


BLOCKS = [block for block in blocks() if block.page not in GENERATED]


def reason(command: str) -> str | None:
    """Why a command is not run here; None if it is."""
    return next((why for beginning, why in NOT_RUN.items() if f"{command} ".startswith(f"{beginning} ")), None)


def commands() -> dict[str, str]:
    """Each command of the pages that are not played as a whole, and a place where it stands."""
    found: dict[str, str] = {}
    for block in BLOCKS:
        if block.language == "sh" and block.page not in PLAYED:
            for line in block.text.replace("\\\n", " ").splitlines():
                # Without the comment: "#" begins one at the beginning of a word.
                command = re.sub(r"(^| +)#.*", "", line).strip()
                if command:
                    found.setdefault(command, f"{block.page}:{block.line}")
    return found


COMMANDS = commands()


def test_every_block_says_what_it_is() -> None:
    known = SHOWN | {"sh", "toml", "python"}
    assert [block[:3] for block in BLOCKS if block.language not in known] == []


def test_the_pages_that_are_played_are_there() -> None:
    assert {block.page for block in BLOCKS if block.language == "sh"} >= PLAYED


def test_programs_can_be_compiled() -> None:
    programs = [block for block in BLOCKS if block.language == "python"]
    assert len(programs) > 5
    for block in programs:
        ast.parse(block.text, f"{block.page}:{block.line}")


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if block.language == "toml"}))
def test_configurations_can_be_loaded(page: str) -> None:
    """Those of a page together: a later one adds to an earlier one."""
    text = "\n".join(block.text for block in BLOCKS if block.page == page and block.language == "toml")
    if re.search(r"^\[+domain\.", text, re.MULTILINE) and "[[domain]]" not in text:
        text = f"[[domain]]\nmultiuser = true\n{text}"
    config.parse(text.encode(), page)


def test_no_reason_is_left_of_a_command_that_is_gone() -> None:
    # Of programs that pages name in text, or will.
    for_others = {"helm", "kubectl", "node-problem-detector", "scontrol", "sudo apt", "sudo dnf", "sudo ln"}
    unused = [each for each in NOT_RUN if not any(f"{command} ".startswith(f"{each} ") for command in COMMANDS)]
    assert set(unused) <= for_others


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.start()
        running.client("--fault", "kill", "--after", "0.1").wait()
        wait_for("an incident", lambda: running.asked("incidents")["incidents"])
        yield running


@pytest.mark.slow(seconds=15, reason="runs the commands of the documentation")
def test_commands_do_what_the_pages_say(guarded: Guarded, tmp_path: Path) -> None:
    wanted = {command: place for command, place in COMMANDS.items() if reason(command) is None}
    assert len(wanted) > 8
    # As on a machine where it is installed: the names of the pages stand for those of this guard.
    names = {
        "/run/mpsguard/http.sock": str(socket_path(str(guarded.run_directory))),
        "/var/log/mpsguard": str(guarded.root / "log"),
        "LANE": "default-0",
        " ID": " latest",
        "sudo ": "",
    }
    environment = {
        **os.environ,
        "MPSGUARD_RUN_DIRECTORY": str(guarded.run_directory),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    failed = []
    for command, place in wanted.items():
        line = command
        for name, here in names.items():
            line = line.replace(name, here)
        if "doctor" in shlex.split(line):
            line = f"{line} --config {guarded.config}"
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode not in FINE:
            failed.append((place, line, done.returncode, done.stdout + done.stderr))
    assert failed == [], "a command that cannot be run here needs its reason in NOT_RUN"
