"""The tracker: a verdict that changes has a revision, clients that have gone keep their names, storms are cut."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.guard.evidence import ClientCame, Evidence, ProcessEnded, ServerSays, Source, Trust, UvmFault, Xid
from mpsguard.guard.incident import Confidence
from mpsguard.guard.incidents.tracker import IncidentTracker
from mpsguard.guard.journal.journal import Journal
from mpsguard.guard.model import Client
from mpsguard.linux.identity import ProcessKey

LATER = 10.0
"""Seconds after which no more of an incident is waited for."""

A, B = ProcessKey(101, 1010), ProcessKey(102, 1020)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal.open(tmp_path / "journal.sqlite")
    yield opened
    opened.close()


def client(process: ProcessKey, uid: int = 1000) -> Client:
    return Client(
        process, uid, uid, "python train.py", cgroup="/jobs/7", container=None, gpus=None, domain="default",
        lane="default-0", connected_at=0.0,
    )  # fmt: skip


def came(process: ProcessKey, at: float, uid: int = 1000) -> Evidence:
    return Evidence(Source.PROCESSES, at, ClientCame("default", "default-0", uid), process=process, trust=Trust.PROOF)


def killed(process: ProcessKey, at: float) -> Evidence:
    return Evidence(Source.PROCESSES, at, ProcessEnded(None, 9, False, None), process=process, trust=Trust.PROOF)


def test_a_verdict_that_changes_has_a_new_revision(journal: Journal) -> None:
    tracker = IncidentTracker(journal, list)
    now = time.monotonic()
    for process in (A, B):
        tracker.add(came(process, now - 50))
    assert tracker.add(Evidence(Source.KERNEL_LOG, now - 1, Xid(31, B.pid, "..."), gpu="0000:18:00"))
    assert tracker.add(Evidence(Source.SERVER_LOG, now - 1, ServerSays("fault_begins", 99)))
    ((first,), _) = tracker.judge(now)
    assert (first.incident.confidence, first.new) == (Confidence.UNKNOWN, True)
    tracker.add(Evidence(Source.UVM, now - 1.1, UvmFault(0, "write", "", True), process=A, trust=Trust.PROOF))
    ((second,), _) = tracker.judge(now)
    assert (second.id, second.new, second.incident.revision) == (first.id, False, 2)
    assert second.incident.culprit is not None
    assert second.incident.culprit.process == A


def test_a_culprit_that_has_gone_keeps_its_command_user_and_cgroup(journal: Journal) -> None:
    there = [client(A)]
    tracker = IncidentTracker(journal, lambda: there)
    now = time.monotonic()
    tracker.add(came(A, now - 5))
    there.clear()
    tracker.add(killed(A, now))
    ((crash,), _) = tracker.judge(now + LATER)

    async def main() -> None:
        record = await journal.get(crash.id)
        (summary,) = await journal.list()
        assert [(each.command, each.uid, each.cgroup) for each in record.clients] == [
            ("python train.py", 1000, "/jobs/7")
        ]
        assert summary.culprit_command == "python train.py"

    asyncio.run(main())


def test_a_user_s_crashes_beyond_its_share_are_counted_and_another_user_s_are_kept(journal: Journal) -> None:
    tracker = IncidentTracker(journal, list)
    now = time.monotonic()
    for number in range(400):
        process = ProcessKey(1000 + number, number)
        tracker.add(came(process, now, uid=65534))
        tracker.add(killed(process, now))
    tracker.add(came(A, now))
    tracker.add(killed(A, now))
    tracked, _ = tracker.judge(now + LATER)
    culprits = {one.incident.culprit.process for one in tracked if one.incident.culprit is not None}
    assert A in culprits
    assert len(culprits) <= 101
    assert tracker.left_out > 0
