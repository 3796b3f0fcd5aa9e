"""A guard's own directories: what is given back its mode and owner, and what is left alone."""

import stat
from pathlib import Path

from mpsguard.guard.daemon.own_directories import open_state
from mpsguard.guard.daemon.own_paths import DirectoryPath


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_directory_whose_mode_was_changed_gets_it_back(tmp_path: Path) -> None:
    path = DirectoryPath(tmp_path / "state", open_state, "")
    assert path.changed() is None
    path.path.chmod(0o755)
    assert path.changed() is not None
    path.mend()
    assert mode(path.path) == 0o700


def test_one_that_was_moved_away_is_not_the_guards_any_more(tmp_path: Path) -> None:
    path = DirectoryPath(tmp_path / "state", open_state, "")
    assert path.changed() is None
    moved = path.path.rename(tmp_path / "kept")
    moved.chmod(0o755)
    assert path.changed() == "is gone"
    path.mend()
    assert (mode(moved), mode(path.path)) == (0o755, 0o700)
    assert path.changed() is None
