"""Commands of the documentation, run as a reader would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

AFTER_A_FAILURE = """trap 'set +e
mpsguard-ctl vault release --force $(id -u) survivor
mpsguard-ctl mps quit
kill $(jobs -p)' EXIT"""
"""So that nothing is left of a page with a command that fails."""


@pytest.mark.parametrize(("guide", "name"), [("survive", "survivor"), ("standby", "count_server")])
def test_the_page_shows_the_programs_that_are_tested(guide: str, name: str) -> None:
    page = (ROOT / "docs" / "guides" / f"{guide}.md").read_text(encoding="utf-8")
    program = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert f"```python\n{program}```" in page


def played(page: str, directory: str, before: dict[str, str] | None = None) -> None:
    """Play the commands of a page in ``directory``, with ``before``: text to lines that are put in front of it."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = [textwrap.dedent(block) for block in re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)]
    script = (
        "".join(blocks)
        .replace("$(mktemp -d)", directory)
        .replace('export PATH="$PWD/.venv/bin:$PATH"', f'export PATH="{Path(sys.executable).parent}:$PATH"')
    )
    for line, added in (before or {}).items():
        assert script.count(line) == 1
        script = script.replace(line, f"{added}\n{line}")
    done = subprocess.run(
        ["bash", "-c", f"set -eu\n{AFTER_A_FAILURE}\n{script}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100.0,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow(seconds=15, reason="plays a page of the documentation")
def test_the_page_without_a_gpu_leads_to_an_incident() -> None:
    with tempfile.TemporaryDirectory(prefix="try-") as directory:
        # What the reader would look at before the end.
        look = f"mpsguard-ctl --json incidents >{directory}/incidents.json"
        played("start/try-it.md", directory, {"mpsguard-ctl mps quit": look})
        incident, killed = json.loads(Path(directory, "incidents.json").read_text(encoding="utf-8"))["incidents"]
        assert incident["fault_class"] == "mmu_or_sm"
        assert len(incident["candidates"]) == 4
        assert "--fault kill" in killed["culprit_command"]
        assert (killed["confidence"], killed["victims"]) == ("proven", [])
        assert (Path(directory) / "incident.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.slow(seconds=20, reason="plays a page of the documentation")
def test_the_program_of_the_page_survives_what_the_page_does_to_it() -> None:
    with tempfile.TemporaryDirectory(prefix="try-") as directory:
        played("guides/survive.md", directory)
        lines = (Path(directory) / "sums").read_text(encoding="ascii").splitlines()
        sums = [(int(step), int(total)) for step, total in (line.split() for line in lines)]
        assert [total for _, total in sums] == [step * (step + 1) // 2 for step, _ in sums]
        steps = [step for step, _ in sums]
        assert steps == sorted(set(steps))
        # One that was published but not printed, for each process that was killed at work.
        assert steps[-1] - len(steps) <= 2
        deaths = (Path(directory) / "run.log").read_text(encoding="utf-8")
        assert len(re.findall(r"; its standby \d+ takes over", deaths)) == 1
