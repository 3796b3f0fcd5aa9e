"""The register of sensors: a class in a module of the package is enough."""

import sys
from pathlib import Path

import pytest

from mpsguard.guard import sensors
from mpsguard.guard.sensors import sensor

_NEW = """
from mpsguard.guard.sensors.sensor import Sensor, register

@register
class NewSensor(Sensor):
    name = "new"
"""


def test_each_sensor_has_a_name_of_its_own() -> None:
    names = [each.name for each in sensor.registered()]
    assert len(names) == len(set(names))
    assert {"uvm", "kmsg", "nvml", "kmod", "procs", "gpucore", "zones", "core directory"} <= set(names)


def test_a_new_file_is_a_new_sensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new_sensor.py").write_text(_NEW)
    monkeypatch.setattr(sensor, "_register", list(sensor.registered()))
    monkeypatch.setattr(sensors, "__path__", [*sensors.__path__, str(tmp_path)])
    try:
        assert [each.name for each in sensor.registered() if each.name == "new"] == ["new"]
    finally:
        sys.modules.pop("mpsguard.guard.sensors.new_sensor", None)
