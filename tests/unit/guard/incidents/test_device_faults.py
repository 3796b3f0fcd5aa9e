"""Device faults stand over restarts of the guard, until a repair."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mpsguard.guard.evidence import DeviceHealth, Evidence, Observation, Source, Xid
from mpsguard.guard.incident import Confidence, FaultClass, Incident
from mpsguard.guard.incidents.device_faults import DeviceFaults
from mpsguard.guard.incidents.tracker import TrackedIncident
from mpsguard.guard.journal.journal import Journal
from mpsguard.guard.triage.verdict import triage


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


GPU, OTHER = "0000:01:00", "0000:02:00"
ACTION = "GPU recovery action changed from {} to {}"
RESET = Xid(154, None, ACTION.format("0x0 (None)", "0x1 (GPU Reset Required)"))
NONE = Xid(154, None, ACTION.format("0x1 (GPU Reset Required)", "0x0 (None)"))
DRAIN = Xid(154, None, ACTION.format("0x1 (GPU Reset Required)", "0x4 (Drain and Reset)"))
HALTED = Xid(62, None, "0000(0000) 00000000 00000000")
REPLACE = Xid(64, None, "Row remapping failure")


def seen(what: Observation, at: float, gpu: str = GPU, source: Source = Source.KERNEL_LOG) -> Evidence:
    return Evidence(source, observed_at=at, what=what, happened_at=at, gpu=gpu, serial=f"{at}:{gpu}")


def tracked(name: str, *evidence: Evidence) -> TrackedIncident:
    [verdict] = triage(evidence)
    return TrackedIncident(name, verdict, new=True)


@pytest.fixture
def faults(tmp_path: Path) -> DeviceFaults:
    return DeviceFaults(Journal.open(tmp_path / "journal.sqlite"))


@pytest.mark.parametrize(
    "none",
    [seen(NONE, 20.0), seen(DeviceHealth("recovery_action", 0, False), 20.0, source=Source.NVML)],
    ids=["Xid 154", "NVML"],
)
@pytest.mark.parametrize("sign", [RESET, HALTED])
def test_one_is_over_once_the_driver_says_that_nothing_needs_to_be_done(
    faults: DeviceFaults, none: Evidence, sign: Xid
) -> None:
    fault, other = tracked("1", seen(sign, 10.0)), tracked("2", seen(sign, 10.0, OTHER))
    faults.observe(fault)
    faults.observe(other)
    assert [each.incident for each in faults.close(none)] == ["1"]
    assert [each.incident for each in faults.standing] == ["2"]
    # The incident changes once more, for the clients that ended; and then there is a new one.
    faults.observe(fault)
    assert [each.incident for each in faults.standing] == ["2"]
    faults.observe(tracked("3", seen(sign, 30.0)))
    assert [each.incident for each in faults.standing] == ["2", "3"]


def test_one_that_is_over_before_it_is_judged_does_not_stand(faults: DeviceFaults) -> None:
    """As where the guard reads both lines from the ring at its start."""
    assert faults.close(seen(RESET, 10.0)) == ()
    assert faults.close(seen(NONE, 20.0)) == ()
    faults.observe(tracked("1", seen(RESET, 10.0)))
    assert faults.standing == ()


@pytest.mark.parametrize("what", [RESET, DRAIN, HALTED, Xid(154, None, "GPU recovery action changed")])
def test_no_other_message_ends_one(faults: DeviceFaults, what: Xid) -> None:
    faults.observe(tracked("1", seen(RESET, 10.0)))
    assert faults.close(seen(what, 20.0)) == ()
    assert [each.incident for each in faults.standing] == ["1"]


@pytest.mark.parametrize("order", [(RESET, REPLACE), (REPLACE, RESET)])
def test_a_gpu_that_is_to_be_replaced_waits_for_the_operator(faults: DeviceFaults, order: tuple[Xid, Xid]) -> None:
    for number, what in enumerate(order):
        faults.observe(tracked(str(number), seen(what, 10.0 * (number + 1))))
    assert faults.close(seen(NONE, 40.0)) == ()
    assert [(each.incident, each.lasting) for each in faults.standing] == [("0", True)]
    assert len(faults.repaired()) == 1
    assert faults.standing == ()


def test_one_whose_verdict_becomes_another_does_not_stand(faults: DeviceFaults) -> None:
    lost = seen(Xid(48, None, "An uncorrectable double bit error (DBE) has been detected on GPU"), 10.0)
    contained = seen(Xid(94, None, "Contained: SM (0x1). RST: No, D-RST: No"), 10.9)
    faults.observe(tracked("1", lost))
    assert [each.incident for each in faults.standing] == ["1"]
    faults.observe(tracked("1", lost, msgspec.structs.replace(contained, happened_at=10.3)))
    assert faults.standing == ()
