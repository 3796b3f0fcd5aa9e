"""The desk: verdicts that change are told with their revision, those that are gone keep their names, storms are cut."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from mpsguard.evidence import ClientCame, Evidence, ProcessEnded, ServerSays, Source, Trust, UvmFault, Xid
from mpsguard.incident import Confidence, Incident
from mpsguard.incidents.tracker import IncidentTracker
from mpsguard.journal.journal import Journal
from mpsguard.model import Client, ProcessKey

A, B = ProcessKey(101, 1010), ProcessKey(102, 1020)


def client(process: ProcessKey, uid: int = 1000) -> Client:
    return Client(
        process, uid, uid, "python train.py", cgroup="/jobs/7", container=None, gpus=None, domain="default",
        lane="default-0", connected_at=0.0,
    )  # fmt: skip


def came(process: ProcessKey, at: float, uid: int = 1000) -> Evidence:
    return Evidence(Source.PROCESSES, at, ClientCame("default", "default-0", uid), process=process, trust=Trust.PROOF)


def killed(process: ProcessKey, at: float) -> Evidence:
    return Evidence(Source.PROCESSES, at, ProcessEnded(None, 9, False, None), process=process, trust=Trust.PROOF)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_verdict_that_changes_is_told_with_its_revision(tmp_path: Path) -> None:
    told: list[tuple[str, Incident, bool]] = []

    async def main() -> None:
        journal = Journal.open(tmp_path / "journal.sqlite")
        desk = IncidentTracker(journal, list, lambda *one: told.append(one))
        now = time.monotonic()
        for process in (A, B):
            desk.take(came(process, now - 50))
        desk.take(Evidence(Source.KERNEL_LOG, now - 1, Xid(31, B.pid, "..."), gpu="0000:18:00"))
        desk.take(Evidence(Source.SERVER_LOG, now - 1, ServerSays("fault_begins", 99)))
        await until(lambda: told)
        assert [(incident.confidence, new) for _, incident, new in told] == [(Confidence.UNKNOWN, True)]
        desk.take(Evidence(Source.UVM, now - 1.1, UvmFault(0, "write", "", True), process=A, trust=Trust.PROOF))
        await until(lambda: len(told) > 1)
        desk.close()
        journal.close()

    asyncio.run(main())
    (first, _, _), (second, incident, new) = told
    assert (second, new, incident.revision) == (first, False, 2)
    assert incident.culprit is not None
    assert incident.culprit.process == A


def test_a_culprit_that_has_gone_keeps_its_command_user_and_cgroup(tmp_path: Path) -> None:
    told: list[str] = []

    async def main() -> None:
        journal = Journal.open(tmp_path / "journal.sqlite")
        there = [client(A)]
        desk = IncidentTracker(journal, lambda: there, lambda identity, *_: told.append(identity))
        now = time.monotonic()
        desk.take(came(A, now - 5))
        there.clear()
        desk.take(killed(A, now))
        await until(lambda: told)
        record = await journal.get(told[0])
        (summary,) = await journal.list()
        assert [(each.command, each.uid, each.cgroup) for each in record.clients] == [
            ("python train.py", 1000, "/jobs/7")
        ]
        assert summary.culprit_command == "python train.py"
        desk.close()
        journal.close()

    asyncio.run(main())


def test_a_user_s_crashes_beyond_its_share_are_counted_and_another_user_s_are_kept(tmp_path: Path) -> None:
    told: list[Incident] = []

    async def main() -> None:
        journal = Journal.open(tmp_path / "journal.sqlite")
        desk = IncidentTracker(journal, list, lambda _, incident, _new: told.append(incident))
        now = time.monotonic()
        for number in range(400):
            process = ProcessKey(1000 + number, number)
            desk.take(came(process, now, uid=65534))
            desk.take(killed(process, now))
            await asyncio.sleep(0)
        desk.take(came(A, now))
        desk.take(killed(A, now))
        await until(lambda: any(one.culprit and one.culprit.process == A for one in told))
        assert desk.left_out > 0
        desk.close()
        journal.close()

    asyncio.run(main())
    assert len({one.culprit for one in told}) <= 101
