"""What the watch holds of a lane's pipe directory."""

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from mpsguard.guard.daemon.lane_path import LanePath
from mpsguard.linux.identity import ProcessKey
from tests.harness.open_descriptors import open_descriptors, opened_since

if TYPE_CHECKING:
    from mpsguard.guard.lanes.lane import Lane


def test_of_daemons_that_come_between_two_looks_the_last_one_is_held(tmp_path: Path) -> None:
    for name in ("control", "control_privileged"):
        (tmp_path / name).touch()
    report = SimpleNamespace(control=ProcessKey(1, 1))
    # All that it takes of a lane.
    path = LanePath(cast("Lane", SimpleNamespace(spec=SimpleNamespace(pipe_directory=tmp_path), report=report)))
    before = open_descriptors()
    for pid in (1, 2, 3):
        report.control = ProcessKey(pid, pid)
        path.learn()
    assert path.changed() is None
    assert len(opened_since(before)) == 3
    path.learn()
    path.close()
    assert opened_since(before) == []
