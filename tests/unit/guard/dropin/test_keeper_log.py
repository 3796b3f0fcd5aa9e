"""The log of a keeper: cut when it is large, without a line lost that was there before."""

import os
import stat
from pathlib import Path

from mpsguard.guard.dropin.keeper_log import KeeperLog


def test_a_large_log_is_moved_to_the_older_file_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "mpsguard.log"
    log = KeeperLog.open(path)
    try:
        first, second = b"a" * (3 << 20), b"b" * 100
        os.write(log.log, first)
        assert not log.cut(len(first))
        assert log.cut(len(first) - 1)
        assert ((path.parent / "mpsguard.log.1").read_bytes() == first, path.read_bytes()) == (True, b"")
        # It is appended to, so the next line is not behind a hole.
        os.write(log.log, second)
        assert path.read_bytes() == second
        assert log.cut(1)
        assert (path.parent / "mpsguard.log.1").read_bytes() == second
    finally:
        log.close()


def test_both_are_private_also_where_an_earlier_version_made_the_log(tmp_path: Path) -> None:
    path = tmp_path / "mpsguard.log"
    path.write_text("before\n")
    path.chmod(0o644)
    KeeperLog.open(path).close()
    assert [stat.S_IMODE(each.stat().st_mode) for each in sorted(tmp_path.iterdir())] == [0o600, 0o600]
    assert path.read_text() == "before\n"
