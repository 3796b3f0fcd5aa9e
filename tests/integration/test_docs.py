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


@pytest.mark.parametrize("name", ["survivor", "survivor_cuda"])
def test_the_page_shows_the_programs_that_are_tested(name: str) -> None:
    page = (ROOT / "docs" / "guides" / "survive.md").read_text(encoding="utf-8")
    program = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert f"```python\n{program}```" in page


@pytest.mark.slow(seconds=15, reason="plays a page of the documentation")
def test_the_page_without_a_gpu_leads_to_an_incident() -> None:
    page = (ROOT / "docs" / "start" / "try-it.md").read_text(encoding="utf-8")
    blocks = [textwrap.dedent(block) for block in re.findall(r"^ *```sh\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE)]
    with tempfile.TemporaryDirectory(prefix="try-") as directory:
        script = "set -eu\n" + "".join(blocks).replace("/tmp/try", directory).replace(
            'export PATH="$PWD/.venv/bin:$PATH"', f'export PATH="{Path(sys.executable).parent}:$PATH"'
        )
        # What the reader would look at before the end.
        script = script.replace(
            "mpsguard-ctl mps quit", f"mpsguard-ctl --json incidents >{directory}/incidents.json\nmpsguard-ctl mps quit"
        )
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=100.0,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (incident, *_) = json.loads(Path(directory, "incidents.json").read_text(encoding="utf-8"))["incidents"]
        assert incident["fault_class"] == "sm"
        assert len(incident["candidates"]) == 4
        assert (Path(directory) / "incident.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
