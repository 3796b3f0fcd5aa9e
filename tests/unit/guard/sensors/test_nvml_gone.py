"""The nvml sensor where a GPU is lost, or was reset while NVML was away."""

from typing import Any

import pytest

from mpsguard.guard.evidence import DeviceHealth, Lost
from mpsguard.guard.sensors import nvml
from tests.unit.guard.sensors.nvml_vendor import LOST, UNKNOWN, NVMLError, Vendor
from tests.unit.guard.sensors.test_nvml import listening, run


def test_a_lost_gpu_is_named_by_what_it_answers() -> None:
    class SecondLost(Vendor):
        lost = False

        def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:  # noqa: N802
            if self.lost and self.nvmlDeviceGetPciInfo(handle).bus == 0x19:
                raise NVMLError(LOST)
            return super().nvmlDeviceGetUtilizationRates(handle)

    async def test() -> None:
        vendor = SecondLost(gpus=2)
        async with listening(vendor) as (_, heard):
            assert (await heard.state()).present
            vendor.lost = True
            vendor.events.put(NVMLError(LOST))
            told = await heard.next()
            assert (told.what, told.gpu) == (DeviceHealth("gpu_lost", 1, True), "0000:19:00")
            assert (await heard.next()).what == Lost(-1)

    run(test)


def test_a_reset_while_nvml_was_away_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_REOPEN_AFTER", 0.0)

    async def test() -> None:
        vendor = Vendor()
        vendor.action = 1
        async with listening(vendor) as (_, heard):
            assert (await heard.next()).what == DeviceHealth("recovery_action", 1, True)
            vendor.action = 0
            vendor.events.put(NVMLError(UNKNOWN))
            assert (await heard.next()).what == Lost(-1)
            assert (await heard.next()).what == DeviceHealth("recovery_action", 0, False)

    run(test)
