"""The nvml sensor: absent for real, and heard through a stand-in for the vendor's module; each call of it may fail."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from mpsguard.guard.evidence import DeviceHealth, Evidence, Lost, Source, Trust, Xid
from mpsguard.guard.sensors import nvml, nvml_device
from mpsguard.guard.sensors.nvml import NvmlSensor
from mpsguard.guard.sensors.nvml_device import EVENT_KINDS, MemoryReading, pci_address
from mpsguard.guard.sensors.sensor import SensorState
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import PATIENCE
from tests.unit.guard.sensors.nvml_vendor import (
    DOUBLE_BIT,
    LOST,
    NOT_SUPPORTED,
    RECOVERY_ACTION,
    UNKNOWN,
    XID,
    NVMLError,
    Vendor,
)

CALLS = [
    "nvmlInit",
    "nvmlEventSetCreate",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
    "nvmlDeviceGetRetiredPages",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetFieldValues",
    "nvmlEventSetWait_v2",
    "nvmlEventSetFree",
    "nvmlShutdown",
]


class Heard:
    """What a sensor said, to be waited for."""

    def __init__(self) -> None:
        self.evidence: asyncio.Queue[Evidence] = asyncio.Queue()
        self.states: asyncio.Queue[SensorState] = asyncio.Queue()

    async def next(self) -> Evidence:
        return await asyncio.wait_for(self.evidence.get(), PATIENCE)

    async def state(self) -> SensorState:
        return await asyncio.wait_for(self.states.get(), PATIENCE)


@asynccontextmanager
async def listening(library: Any) -> AsyncIterator[tuple[NvmlSensor, Heard]]:
    before, threads = open_descriptors(), set(threading.enumerate())
    heard = Heard()
    sensor = NvmlSensor(heard.evidence.put_nowait, library, changed=heard.states.put_nowait)
    try:
        yield sensor, heard
    finally:
        sensor.close()
        sensor.close()
    assert set(threading.enumerate()) <= threads
    assert opened_since(before) == []
    if isinstance(library, Vendor):
        assert (library.open, library.sets) == (0, 0)
        assert library.threads <= {"nvml"}


def run(test: Callable[[], Any]) -> None:
    asyncio.run(test())


def test_without_driver_or_library_it_is_absent_and_says_why() -> None:
    """The real thing: on a machine with a GPU it is there instead."""

    async def test() -> None:
        async with listening(None) as (sensor, heard):
            state = await heard.state()
            assert state == sensor.state()
            if not state.present:
                assert state.detail.startswith(("no library: ", "nvmlInit: ", "no GPU"))

    run(test)


def test_a_missing_library_is_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", missing)

    async def test() -> None:
        async with listening(None) as (_, heard):
            assert await heard.state() == SensorState(False, "no library: No module named 'pynvml'")

    run(test)


def test_a_library_that_is_too_old_is_absence() -> None:
    async def test() -> None:
        async with listening(SimpleNamespace(NVMLError=NVMLError, nvmlInit=lambda: None)) as (_, heard):
            state = await heard.state()
            assert not state.present
            assert "too old" in state.detail

    run(test)


def test_an_xid_is_reported_with_its_gpu_and_accuses_no_client() -> None:
    async def test() -> None:
        vendor = Vendor(gpus=2)
        async with listening(vendor) as (sensor, heard):
            assert await heard.state() == SensorState(True, "watching 0000:18:00, 0000:19:00")
            assert sensor.name == "nvml"
            # The poison event is known to the library but not to the GPU; the clock event is not wanted.
            assert vendor.registered == [XID | DOUBLE_BIT | RECOVERY_ACTION] * 2
            before = asyncio.get_running_loop().time()
            vendor.called.clear()
            vendor.happen(XID, 31, gpu=1)
            vendor.happen(XID, 13, gpu=0, instance=2)
            first, second = await heard.next(), await heard.next()
            assert first.what == Xid(31, None, "")
            assert (first.source, first.gpu, first.trust, first.process) == (
                Source.NVML,
                "0000:19:00",
                Trust.NONE,
                None,
            )
            assert before <= first.observed_at <= asyncio.get_running_loop().time()
            assert second.what == Xid(13, None, "GPU instance 2, compute instance 2")
            # A client's fault is no reason to ask a GPU that is recovering anything.
            assert set(vendor.called) == {"nvmlEventSetWait_v2"}

    run(test)


def test_the_health_is_read_at_the_start_and_after_an_event_of_the_device() -> None:
    async def test() -> None:
        vendor = Vendor()
        vendor.rows = (1, 0, 0, 0)
        async with listening(vendor) as (_, heard):
            assert (await heard.next()).what == DeviceHealth("remapped_rows_correctable", 1, False)
            vendor.rows, vendor.action = (1, 1, 1, 1), 1
            vendor.happen(XID, 64)
            assert (await heard.next()).what == Xid(64, None, "")
            told = [await heard.next() for _ in range(4)]
            assert [evidence.what for evidence in told] == [
                DeviceHealth("remapped_rows_uncorrectable", 1, False),
                DeviceHealth("row_remap_pending", 1, False),
                DeviceHealth("row_remap_failed", 1, True),
                DeviceHealth("recovery_action", 1, True),
            ]
            assert {evidence.gpu for evidence in told} == {"0000:18:00"}
            vendor.action = 0
            vendor.happen(RECOVERY_ACTION)
            assert (await heard.next()).what == DeviceHealth("recovery_action_changed", 0, False)
            assert (await heard.next()).what == DeviceHealth("recovery_action", 0, False)
            vendor.happen(DOUBLE_BIT)
            assert (await heard.next()).what == DeviceHealth("ecc_double_bit", 0, True)
            vendor.happen(0x40000)
            assert (await heard.next()).what == DeviceHealth("event_0x40000", 0, False)

    run(test)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [NOT_SUPPORTED, UNKNOWN, LOST])
def test_each_call_may_fail(call: str, error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is essential makes the sensor absent with the error's text; the rest is done without."""
    monkeypatch.setattr(nvml, "_REOPEN_AFTER", 600.0)
    essential = {
        "nvmlInit",
        "nvmlEventSetCreate",
        "nvmlDeviceGetCount",
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetPciInfo",
        "nvmlDeviceRegisterEvents",
    }

    async def test() -> None:
        vendor = Vendor()
        vendor.fails = {call: error}
        async with listening(vendor) as (_, heard):
            state = await heard.state()
            if call in essential:
                assert not state.present
                assert f"NVML error {error}" in state.detail
                assert heard.evidence.empty()
                return
            assert state.present
            if call == "nvmlDeviceGetSupportedEventTypes":
                assert vendor.registered == [XID]
                assert f"Xids only: NVML error {error}" in state.detail
            if call == "nvmlEventSetWait_v2":
                failed = await heard.state()
                assert not failed.present
                assert f"NVML error {error}" in failed.detail
                if error == LOST:
                    assert (await heard.next()).what == DeviceHealth("gpu_lost", 1, True)
                assert (await heard.next()).what == Lost(-1)
                return
            vendor.happen(XID, 31)
            assert (await heard.next()).what == Xid(31, None, "")

    run(test)


def test_one_gpu_that_fails_leaves_the_others_watched() -> None:
    class OneLost(Vendor):
        def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
            if index == 0:
                raise NVMLError(LOST)
            return super().nvmlDeviceGetHandleByIndex(index)

    async def test() -> None:
        vendor = OneLost(gpus=2)
        async with listening(vendor) as (_, heard):
            assert await heard.state() == SensorState(True, "watching 0000:19:00; GPU 0: NVML error 15")
            # An event of a GPU that is not known is told without its address.
            vendor.happen(XID, 79, gpu=0)
            told = await heard.next()
            assert (told.what, told.gpu) == (Xid(79, None, ""), None)

    run(test)


def test_after_a_failure_it_listens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_REOPEN_AFTER", 0.0)

    async def test() -> None:
        vendor = Vendor()
        async with listening(vendor) as (_, heard):
            assert (await heard.state()).present
            # The driver is taken away, not there at first, and back then.
            vendor.fails = {"nvmlInit": 9}
            vendor.events.put(NVMLError(UNKNOWN))
            assert (await heard.next()).what == Lost(-1)
            assert not (await heard.state()).present
            assert await heard.state() == SensorState(False, "nvmlInit: NVML error 9")
            vendor.fails = {}
            while not (await heard.state()).present:
                pass
            vendor.happen(XID, 43)
            assert (await heard.next()).what == Xid(43, None, "")

    run(test)


def test_gpus_that_are_gone_at_the_reopening_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_REOPEN_AFTER", 0.0)

    async def test() -> None:
        vendor = Vendor()
        async with listening(vendor) as (_, heard):
            assert (await heard.state()).present
            vendor.fails = {"nvmlDeviceGetHandleByIndex": LOST}
            vendor.events.put(NVMLError(LOST))
            assert not (await heard.state()).present
            assert await heard.state() == SensorState(False, "GPU 0: NVML error 15")

    run(test)


def test_nothing_is_said_after_it_was_closed() -> None:
    async def test() -> None:
        vendor = Vendor()
        async with listening(vendor) as (sensor, heard):
            await heard.state()
            sensor._closing.set()
            vendor.happen(XID, 31)
            sensor.close()
            assert not sensor._thread.is_alive()
            # What the thread had handed over is called back before this.
            await asyncio.sleep(0)
            assert heard.evidence.empty()

    run(test)


def test_it_looks_for_work_only_on_request_and_unknown_means_busy() -> None:
    vendor = Vendor()

    async def test() -> None:
        heard = Heard()
        sensor = NvmlSensor(heard.evidence.put_nowait, vendor, changed=heard.states.put_nowait)
        await heard.state()
        vendor.utilization = 40
        sensor.watch_idleness(True)
        async with asyncio.timeout(PATIENCE):
            while vendor.called.count("nvmlDeviceGetUtilizationRates") < 2:
                await asyncio.sleep(0.01)
            assert sensor.idle_seen_at() is None
            vendor.fails["nvmlDeviceGetUtilizationRates"] = NOT_SUPPORTED
            seen = vendor.called.count("nvmlDeviceGetUtilizationRates")
            while vendor.called.count("nvmlDeviceGetUtilizationRates") < seen + 2:
                await asyncio.sleep(0.01)
            assert sensor.idle_seen_at() is None
            vendor.fails.clear()
            vendor.utilization = 0
            while sensor.idle_seen_at() is None:
                await asyncio.sleep(0.01)
        sensor.close()

    run(test)


def test_a_loop_that_was_closed_ends_the_thread() -> None:
    vendor = Vendor()
    made: list[NvmlSensor] = []

    async def careless() -> None:
        heard = Heard()
        made.append(NvmlSensor(heard.evidence.put_nowait, vendor, changed=heard.states.put_nowait))
        await heard.state()

    asyncio.run(careless())
    vendor.happen(XID, 31)
    made[0]._thread.join(PATIENCE)
    assert not made[0]._thread.is_alive()
    assert (vendor.open, vendor.sets) == (0, 0)


def test_the_vendors_module_has_what_is_used_of_it() -> None:
    pynvml = pytest.importorskip("pynvml")
    assert [name for name in CALLS if not hasattr(pynvml, name)] == []
    constants = [kind.constant for kind in EVENT_KINDS]
    constants += [name for name in vars(Vendor) if name.startswith(("NVML_", "nvmlEventType"))]
    assert [name for name in constants if not hasattr(pynvml, name)] == []
    assert (pynvml.NVML_ERROR_TIMEOUT, pynvml.NVML_ERROR_GPU_IS_LOST) == (nvml._TIMEOUT, nvml_device.GPU_IS_LOST)
    assert pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT).value == nvml._TIMEOUT


@pytest.mark.parametrize(
    ("domain", "bus", "device", "address"),
    [(0, 0x18, 0, "0000:18:00"), (0, 0xAF, 0x1F, "0000:af:1f"), (0x10000, 1, 0, "10000:01:00")],
)
def test_the_address_is_the_kernel_log_s(domain: int, bus: int, device: int, address: str) -> None:
    assert pci_address(SimpleNamespace(domain=domain, bus=bus, device=device)) == address


def test_memory_is_read_only_on_request_and_unknown_is_left_out() -> None:
    vendor = Vendor(gpus=2)
    vendor.memory = {7: 1 << 30, 8: None}

    async def test() -> None:
        heard = Heard()
        sensor = NvmlSensor(heard.evidence.put_nowait, vendor, changed=heard.states.put_nowait)
        await heard.state()
        vendor.happen(XID, 31)
        await heard.evidence.get()
        assert "nvmlDeviceGetMPSComputeRunningProcesses" not in vendor.called
        async with asyncio.timeout(PATIENCE):
            while not (found := sensor.memory()):
                await asyncio.sleep(0.01)
        assert set(found.values()) == {1 << 30}
        assert {pid for pid, _ in found} == {7}
        assert len({gpu for _, gpu in found}) == 2
        assert [(gpu.identity.address, gpu.used, gpu.total) for gpu in sensor.gpus()] == [
            (address, 1 << 30, 80 << 30) for address in ("0000:18:00", "0000:19:00")
        ]
        sensor.close()

    run(test)


def test_watched_memory_is_read_again_and_again_and_a_gpu_that_does_not_answer_is_left_out() -> None:
    async def test() -> None:
        vendor = Vendor(gpus=2)
        vendor.memory = {7: 1 << 30}
        readings: asyncio.Queue[MemoryReading] = asyncio.Queue()
        async with listening(vendor) as (sensor, heard):
            await heard.state()
            sensor.watch_memory(readings.put_nowait)
            first, _second = [await asyncio.wait_for(readings.get(), PATIENCE) for _ in range(2)]
            assert first.sizes == {(7, "0000:18:00"): 1 << 30, (7, "0000:19:00"): 1 << 30}
            assert [gpu.address for gpu in first.gpus] == ["0000:18:00", "0000:19:00"]
            assert {(gpu.uuid[:12], gpu.model) for gpu in first.every_gpu} == {
                ("GPU-00000018", "Stand-in"),
                ("GPU-00000019", "Stand-in"),
            }
            vendor.fails = {"nvmlDeviceGetMPSComputeRunningProcesses": LOST}
            while (reading := await asyncio.wait_for(readings.get(), PATIENCE)).gpus:
                pass
            assert (len(reading.every_gpu), reading.sizes) == (2, {})
            sensor.watch_memory(None)

    run(test)
