"""What was told so far, and what is left after a round."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from mpsguard.guard.incident import Confidence, FaultClass
from mpsguard.guard.journal.records import IncidentSummary
from mpsguard.guard.kubernetes.event_series import Series
from mpsguard.guard.kubernetes.reporter import LOOKS_BACK, Progress, ProgressFile, advanced

SUMMARY = IncidentSummary(
    "a", 0.0, 10.0, FaultClass.MMU, None, None, None, None, (), (), Confidence.UNKNOWN, "", ()
)  # fmt: skip
LISTED = (replace(SUMMARY, id="c", ended=30.0), replace(SUMMARY, id="b", ended=20.0), SUMMARY)


@pytest.mark.parametrize(
    ("done", "since", "kept"),
    [(("a", "b", "c"), 30.0, ("c",)), (("a",), 20.0, ()), (("b", "c"), 10.0, ("b", "c")), ((), 10.0, ())],
)
def test_all_before_the_first_that_is_left_is_forgotten(
    done: tuple[str, ...], since: float, kept: tuple[str, ...]
) -> None:
    after = advanced(Progress(5.0), LISTED, done, {})
    assert (after.since, after.done) == (since, kept)


def test_without_incidents_time_stands_still() -> None:
    assert advanced(Progress(5.0), (), (), {}) == Progress(5.0)


def test_what_was_saved_is_loaded_and_a_first_start_looks_back_a_little(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path / "new" / "events.json")
    assert file.load(1000.0) == (Progress(1000.0 - LOOKS_BACK), "")
    progress = Progress(3.0, ("a",), {"key": Series("team-a", "pod.1", 2, 4.0)})
    file.save(progress)
    assert file.load(1000.0) == (progress, "")


def test_a_damaged_file_is_said_and_not_fatal(tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    path.write_text('{"since": "yesterday"}')
    progress, problem = ProgressFile(path).load(1000.0)
    assert progress == Progress(1000.0 - LOOKS_BACK)
    assert str(path) in problem
