"""The kernel log at a fatal fault: read to its end before the verdict, with the time since when nothing is missing."""

import time

from mpsguard.guard.evidence import Evidence, LogRead, Lost, Source, Trust, UvmFault, Xid
from mpsguard.guard.sensors.kernel_log import KernelLogSensor
from tests.harness.waiting import until
from tests.unit.guard.sensors.test_kernel_log import XID, Device, run


def fatal(*, is_fatal: bool = True) -> Evidence:
    fault = UvmFault(0, "write", "invalid PTE", is_fatal)
    return Evidence(Source.UVM, time.monotonic(), fault, trust=Trust.PROOF, serial="uvm:1")


def readings(published: list[Evidence]) -> list[LogRead]:
    return [evidence.what for evidence in published if isinstance(evidence.what, LogRead)]


def test_at_a_fatal_fault_the_log_is_read_to_its_end_first_and_that_is_told() -> None:
    async def test(device: Device) -> None:
        published: list[Evidence] = []
        sensor = KernelLogSensor(published.append, path=device.path)
        sensor.observe(fatal(is_fatal=False))
        assert not published
        began = time.monotonic()
        device.print(1, XID)
        sensor.observe(fatal())
        # At once, without a turn of the loop: the verdict on the fault comes in the next one.
        assert [type(evidence.what) for evidence in published] == [Xid, LogRead]
        (reading,) = readings(published)
        assert reading.since < began <= published[-1].observed_at
        # Of a storm it is told now and then, and once more after its last fault.
        for _ in range(50):
            sensor.observe(fatal())
        last = time.monotonic()
        await until(lambda: published[-1].observed_at > last)
        assert len(readings(published)) == 2
        sensor.close()
        sensor.observe(fatal())
        assert len(readings(published)) == 2

    run(test)


def test_after_a_gap_only_what_came_later_is_told_to_be_whole() -> None:
    async def test(device: Device) -> None:
        published: list[Evidence] = []
        sensor = KernelLogSensor(published.append, path=device.path, read=device.read)
        device.print(1, XID)
        await until(lambda: len(published) == 1)
        before = time.monotonic()
        device.overruns = 1
        device.print(50, XID)
        sensor.observe(fatal())
        assert [type(evidence.what) for evidence in published] == [Xid, Lost, Xid, LogRead]
        (reading,) = readings(published)
        assert reading.since > before
        sensor.close()

    run(test)
