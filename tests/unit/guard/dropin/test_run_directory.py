"""The run directory of a drop-in's guard, where its sockets' paths would be too long below the pipe directory."""

import os
from pathlib import Path

import pytest

from mpsguard.guard.dropin import own_guard


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A pipe directory with a path of 80 bytes."""
    directory = tmp_path / ("d" * 80)
    directory.mkdir()
    return directory


def test_it_lies_elsewhere_with_a_link_to_it(deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.getuid() or 1000
    monkeypatch.setattr(os, "geteuid", lambda: user)
    found = own_guard._run_directory(deep, {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert found.parent == tmp_path / f"mpsguard-{user}"
    assert (found.parent.stat().st_mode & 0o022) == 0
    assert next(deep.iterdir()).joinpath("run").readlink() == found


def test_not_in_a_directory_that_another_user_made_first(
    deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In /tmp any user may: it could put a run directory of its own in the place of this one at any time."""
    user = os.getuid() or 1000
    monkeypatch.setattr(os, "geteuid", lambda: user)
    first = tmp_path / f"mpsguard-{user}"
    first.mkdir()
    first.chmod(0o777)
    with pytest.raises(PermissionError):
        own_guard._run_directory(deep, {"XDG_RUNTIME_DIR": str(tmp_path)})
