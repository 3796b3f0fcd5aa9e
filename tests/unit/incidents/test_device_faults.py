"""Device faults stand over restarts of the guard, until a repair."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mpsguard.incident import Confidence, FaultClass, Incident
from mpsguard.incidents.device_faults import DeviceFaults
from mpsguard.incidents.tracker import TrackedIncident
from mpsguard.journal.journal import Journal


def incident(name: str, gpu: str, fault_class: FaultClass = FaultClass.DEVICE, xid: int = 79) -> TrackedIncident:
    verdict = Incident(
        fault_class, 1.0, 1.0, gpu, None, None, (), (), Confidence.UNKNOWN, "the GPU is gone", (xid,), ()
    )  # fmt: skip
    return TrackedIncident(name, verdict, new=True)


def test_they_stand_until_they_are_repaired(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    journal = Journal.open(path)
    faults = DeviceFaults(journal)
    faults.observe(incident("1", "0000:01:00"))
    faults.observe(incident("2", "0000:02:00", FaultClass.MMU, 31))
    faults.observe(incident("3", "0000:03:00", xid=48))
    faults.observe(incident("4", "0000:01:00", xid=154))
    assert [(each.incident, each.xids) for each in faults.standing] == [("1", (79,)), ("3", (48,))]
    journal.close()

    journal = Journal.open(path)
    again = DeviceFaults(journal)
    assert again.standing == faults.standing
    assert again.repaired() == faults.standing
    assert again.standing == ()
    journal.close()

    journal = Journal.open(path)
    assert DeviceFaults(journal).standing == ()
    journal.close()


def test_those_of_another_boot_do_not_stand(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.sqlite")
    faults = DeviceFaults(journal)
    faults.observe(incident("1", "0000:01:00"))
    saved = journal.recall("device_faults")
    assert saved is not None
    journal.remember("device_faults", msgspec.json.encode({**msgspec.json.decode(saved), "boot_id": "x"}).decode())
    assert DeviceFaults(journal).standing == ()
    journal.close()
