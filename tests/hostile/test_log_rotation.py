"""logrotate, which runs as root, over log directories in which other users can make names: with our configuration."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.guard_process import REPOSITORY

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="the directories have to be root's"),
    pytest.mark.skipif(shutil.which("logrotate") is None, reason="no logrotate here"),
]


@pytest.mark.parametrize(("mode", "gid", "rotated"), [(0o711, 0, True), (0o777, 0, False), (0o775, 65534, False)])
def test_only_a_directory_of_roots_alone_is_worked_in(tmp_path: Path, mode: int, gid: int, *, rotated: bool) -> None:
    directory = tmp_path / "log" / "default-0"
    directory.mkdir(parents=True)
    (directory / "server.log").write_text("a line\n")
    os.chown(directory, 0, gid)
    directory.chmod(mode)
    text = (REPOSITORY / "distribution" / "systemd" / "mpsguard.logrotate").read_text(encoding="ascii")
    assert text.count("/var/log/mpsguard/") == 1
    configuration = tmp_path / "mpsguard"
    configuration.write_text(text.replace("/var/log/mpsguard/", f"{tmp_path}/log/"))
    configuration.chmod(0o644)
    done = subprocess.run(
        ["logrotate", "--force", "--state", str(tmp_path / "state"), str(configuration)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ("insecure permissions" in done.stderr) == (not rotated)
    assert (directory / "server.log.1").exists() == rotated
