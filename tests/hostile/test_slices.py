"""The groups in which a siege shares the processors: the guard and a user as systemd has them."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.hostile.slices import GUARD, of_user, slices

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="making control groups needs root"),
]


def test_users_and_the_guard_are_in_slices_of_their_own() -> None:
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as guard,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as user,
    ):
        try:
            with slices() as made:
                if not made.present:
                    pytest.skip("no control groups for processors that this process may make")
                made.put(guard.pid, GUARD, 1000)
                made.put(user.pid, of_user(1000))
                paths = {pid: _path(pid, made.name) for pid in (guard.pid, user.pid)}
                assert paths[guard.pid].endswith(f"{made.name}/mpsguard.slice")
                assert paths[user.pid].endswith(f"{made.name}/user.slice/user-1000.slice")
                assert made.weight(GUARD) == 1000
                assert made.weight("user.slice") == made.weight(of_user(1000)) == 100
            assert made.name not in Path(f"/proc/{user.pid}/cgroup").read_text()
        finally:
            guard.kill()
            user.kill()


def _path(pid: int, name: str) -> str:
    return next(line for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if name in line)
