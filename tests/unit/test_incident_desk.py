"""The desk: a verdict changes with the evidence, and no more once what it stands on begins to be forgotten."""

import asyncio
import time
from pathlib import Path

import pytest

from mpsguard.daemon import incident_desk
from mpsguard.daemon.incident_desk import IncidentDesk
from mpsguard.daemon.journal import Journal
from mpsguard.evidence import ClientCame, Evidence, ServerSays, Source, Trust, UvmFault, Xid
from mpsguard.incident import Confidence, Incident
from mpsguard.model import ProcessKey

A, B = ProcessKey(101, 1010), ProcessKey(102, 1020)


@pytest.mark.parametrize("settled", [False, True])
def test_a_verdict_changes_until_it_is_settled(settled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident_desk, "_SETTLED", 0.0 if settled else 60.0)
    told: list[tuple[str, Incident, bool]] = []

    async def main() -> None:
        journal = Journal.open(tmp_path / "journal.sqlite")
        desk = IncidentDesk(journal, list, lambda *one: told.append(one))
        now = time.monotonic()
        for process in (A, B):
            desk.take(Evidence(Source.PROCESSES, now - 5, ClientCame("default", "default-0"), process=process))
        desk.take(Evidence(Source.KERNEL_LOG, now - 1, Xid(31, B.pid, "..."), gpu="0000:18:00"))
        desk.take(Evidence(Source.SERVER_LOG, now - 1, ServerSays("fault_begins", 99)))
        await asyncio.sleep(0.01)
        assert [(incident.confidence, new) for _, incident, new in told] == [(Confidence.UNKNOWN, True)]
        fault = UvmFault(0, "write", "invalid PDE", True)
        desk.take(Evidence(Source.UVM, now - 1.1, fault, process=A, trust=Trust.PROOF))
        await asyncio.sleep(0.01)
        desk.close()
        journal.close()

    asyncio.run(main())
    changes = [(identity, incident.culprit and incident.culprit.process) for identity, incident, new in told if not new]
    assert changes == ([] if settled else [(told[0][0], A)])
