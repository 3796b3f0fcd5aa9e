"""An abstract socket of a user, named as the public one is shown in /proc/net/unix, while mpsguard is installed."""

import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.harness.guard_process import REPOSITORY

ANOTHER_RUNS: Final = "an MPS control daemon runs"


def asked(script: str, pipes: Path, tools: Path) -> str:
    """Run what a script asks before it starts anything, with a pipe directory of the test's; what it says."""
    text = (REPOSITORY / script).read_text(encoding="ascii")
    if script == "scripts/install":
        found = re.findall(
            r"^(?:fail|find_python|listens|refuse_other_daemon)\(\) \{.*?^\}$", text, re.DOTALL | re.MULTILINE
        )
        text = "\n".join([f"set -eu; checkout={REPOSITORY}; built=; venv=", *found, "refuse_other_daemon"])
        text = f"PIPE_DIRECTORY={pipes}\n{text}"
    else:
        assert text.count("PIPE_DIRECTORY=/run/nvidia-mps") == 1
        text = text.replace("PIPE_DIRECTORY=/run/nvidia-mps", f"PIPE_DIRECTORY={pipes}")
        text = text.replace("/run/systemd/system", "/").replace("/usr/lib/mpsguard/bin/python3", sys.executable)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "PYTHON": sys.executable}
    done = subprocess.run(
        ["sh", "-c", text, "sh", "configure"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


@contextmanager
def listening(name: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(name)
        listener.listen()
        yield


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Stand-ins for what would change this machine: nothing is active, and nothing is done."""
    for name in ("systemctl", "deb-systemd-invoke", "deb-systemd-helper", "systemd-sysusers"):
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\n[ {name} != systemctl ]\n")
        tool.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("script", ["scripts/install", "distribution/deb/postinst"])
def test_a_name_alone_is_no_daemon(script: str, tools: Path) -> None:
    # Short: a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory() as directory:
        pipes = Path(directory)
        with listening(f"\0x {pipes}/control"):
            assert f"x {pipes}/control\n" in Path("/proc/net/unix").read_text(errors="replace")
            assert ANOTHER_RUNS not in asked(script, pipes, tools)
        with listening(f"{pipes}/control"):
            assert ANOTHER_RUNS in asked(script, pipes, tools)
        assert ANOTHER_RUNS not in asked(script, pipes, tools)
