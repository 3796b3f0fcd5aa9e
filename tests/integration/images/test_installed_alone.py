"""The extra `images` by itself: the wheel in an environment of its own: no guard, no root, no MPS."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy
import pytest
import safetensors.numpy as safetensors_numpy

from tests.harness.guard_process import REPOSITORY
from tests.integration.systemd import packaged

pytestmark = pytest.mark.slow(seconds=30, reason="builds the wheel and installs it with what the extra needs")

UNPRIVILEGED: Final = 65534
PAGE: Final = (REPOSITORY / "docs" / "guides" / "images.md").read_text(encoding="utf-8")
PINS: Final = REPOSITORY / "scripts" / "packages-python.txt"
OF_THE_COMMAND_LINE: Final = {"__init__.py", "config", "control_api", "model.py", "mps_values.py"}
"""Of the guard's house: where a guard is, and how to ask it. No command of the page asks."""
OF_THE_GUARD: Final = {"cuda", "grpc", "pynvml", "structlog", "tomli_w", "torch", "yaml"}
"""Modules that guard, reporter and GPU need, and images do not."""
SSH: Final = """\
#!/bin/sh
# The other machine: another home.
shift
HOME="$HOME/other" exec "$@"
"""


class Machine(NamedTuple):
    """An environment with the wheel and its extra, and the home of a user without rights."""

    package: Path
    home: Path
    environment: dict[str, str]

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program as that user."""
        dropped: dict[str, Any] = (
            {} if os.geteuid() else {"user": UNPRIVILEGED, "group": UNPRIVILEGED, "extra_groups": []}
        )
        return subprocess.run(
            command,
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
            **dropped,
        )


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    wheel = packaged.kept_wheel(tmp_path_factory.mktemp("wheel"))["whl"]
    # Not in pytest's directory, which is closed to other users. Root's own Python may be closed to them, too.
    with tempfile.TemporaryDirectory(prefix="mpsguard-images-") as name:
        root = Path(name)
        root.chmod(0o755)
        python = sys.executable if os.geteuid() else "/usr/bin/python3"
        subprocess.run([python, "-m", "venv", "--without-pip", root / "venv"], check=True, timeout=60)
        installed = root / "venv" / "bin"
        pip = [sys.executable, "-m", "pip", "--python", str(installed / "python"), "install", "--quiet", "--no-input"]
        done = subprocess.run(
            [*pip, "--constraint", PINS, f"{wheel}[images]"], capture_output=True, text=True, check=False, timeout=300
        )
        if "No matching distribution" in done.stderr:
            pytest.skip(f"no packages to install from: {done.stderr.splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
        (package,) = (root / "venv" / "lib").glob("python3.*/site-packages/mpsguard")
        home = root / "home"
        (home / "other").mkdir(parents=True)
        ssh = root / "venv" / "bin" / "ssh"
        ssh.write_text(SSH, encoding="utf-8")
        ssh.chmod(0o755)
        sample(home / "model-00001-of-00002.safetensors", 0)
        sample(home / "model-00002-of-00002.safetensors", 1)
        if os.geteuid() == 0:
            for path in (home, *home.iterdir()):
                os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
        yield Machine(package, home, {"HOME": str(home), "LANG": "C.UTF-8", "PATH": f"{installed}:/usr/bin:/bin"})


def sample(path: Path, seed: int) -> None:
    """A file of tensors, larger than a piece."""
    drawn = numpy.random.default_rng(seed).standard_normal((700, 1000), dtype="float32")
    safetensors_numpy.save_file({f"w{seed}": drawn, f"b{seed}": drawn[:3].astype("float16")}, path)


@pytest.fixture(scope="module")
def alone(machine: Machine) -> Machine:
    """The same without the guard's house, but for what the command line asks a guard with."""
    for path in (machine.package / "guard").iterdir():
        if path.name not in OF_THE_COMMAND_LINE:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return machine


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_it_brings_nothing_that_only_the_guard_needs(machine: Machine) -> None:
    source = f"import importlib.util as u; print([m for m in {sorted(OF_THE_GUARD)} if u.find_spec(m)])"
    assert machine.run("python", "-c", source).stdout == "[]\n"


def test_the_commands_of_the_page_in_their_order(alone: Machine) -> None:
    # The last one needs two terminals, and is run by test_command_line.py.
    install, *of_images, over_tcp = blocks("sh")
    assert "mpsguard[images]" in install
    assert "--listen" in over_tcp
    assert len(of_images) == 4
    again = "mpsguard-ctl image import --replace {} model-0000{}-of-00002.safetensors\n"
    for block in of_images:
        done = alone.run("bash", "-euxo", "pipefail", "-c", block)
        assert done.returncode == 0, done.stderr
        # One block removes what the next one sends.
        for name, part in (("llama/base", 1), ("llama/chat", 2)):
            assert alone.run("sh", "-c", again.format(name, part)).returncode == 0
    there = alone.run("ssh", "other", "mpsguard-ctl", "image", "list").stdout
    assert "llama/base" in there
    assert "llama/chat" in there


def test_an_export_has_the_tensors_of_both_files(alone: Machine) -> None:
    files = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    for words in (["import", "--replace", "both", *files], ["export", "--replace", "both", "both.safetensors"]):
        done = alone.run("mpsguard-ctl", "image", *words)
        assert done.returncode == 0, done.stderr
    restored = safetensors_numpy.load_file(alone.home / "both.safetensors")
    wanted = {name: tensor for file in files for name, tensor in safetensors_numpy.load_file(alone.home / file).items()}
    assert restored.keys() == wanted.keys()
    assert all(numpy.array_equal(restored[name], wanted[name]) for name in wanted)


def test_the_page_s_program_runs_without_any_of_the_guard(alone: Machine) -> None:
    (source,) = blocks("python")
    hidden = "import sys\nsys.modules.update(dict.fromkeys(['mpsguard.guard', 'prometheus_client', 'zmq']))\n"
    done = alone.run("python", "-c", f"{hidden}{source}assert data == bytes(range(256))\n")
    assert done.returncode == 0, done.stderr
