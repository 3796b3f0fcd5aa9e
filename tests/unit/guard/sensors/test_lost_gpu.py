"""Lines on GPUs that are gone: every way in which the driver and the PCI core say it, and what strangers say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.evidence import Evidence
from mpsguard.guard.sensors.kernel_log import KernelLogSensor
from mpsguard.guard.sensors.lost_gpu import GONE, INACCESSIBLE, LINK_FAILED, LostGpuLines
from tests.harness.waiting import until
from tests.unit.guard.sensors.test_kernel_log import Device, run

# Where they are from, the records in order, what they tell.
REPORTED = [
    ("leptonai/gpud, kmsg_test.go", ["NVRM: GPU 0000:29:00.0: GPU has fallen off the bus."], ("0000:29:00", GONE)),
    (
        "leptonai/gpud, kmsg_test.go: no domain",
        ["NVRM: GPU 18:00.0: GPU has fallen off the bus."],
        ("0000:18:00", GONE),
    ),
    ("NVIDIA/nvidia-docker #1553", ["NVRM: GPU 0000:09:00.0: GPU has fallen off the bus."], ("0000:09:00", GONE)),
    ("wilicc/gpu-burn #1", ["NVRM: GPU at 0000:02:00.0 has fallen off the bus."], ("0000:02:00", GONE)),
    (
        "open driver, nv-mmap.c",
        ["NVRM: GPU 0000:18:00.0: GPU is lost, skipping nvidia_mmap_helper"],
        ("0000:18:00", GONE),
    ),
    (
        "open driver, osapi.c: one record",
        [
            (
                "NVRM: The NVIDIA GPU 0000:b3:00.0?NVRM: (PCI ID: 10de:26b5) installed in "
                "this system has?NVRM: fallen off the bus and is not responding to commands.?"
            )
        ],
        ("0000:b3:00", GONE),
    ),
    (
        "NVIDIA/NVSentinel, gpufallen_handler_test.go: three",
        [
            "NVRM: The NVIDIA GPU 0000:b3:00.0",
            "NVRM: (PCI ID: 10de:26b5) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        ],
        ("0000:b3:00", GONE),
    ),
    (
        "drivers before 500: two",
        [
            "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1c20)",
            "NVRM: installed in this system has fallen off the bus and is not responding to commands.",
        ],
        ("0000:01:00", GONE),
    ),
    (
        "rwth-i6/returnn #1500",
        [
            "pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) error received: 0000:00:03.0",
            "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester)",
            "nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)",
        ],
        ("0000:03:00", LINK_FAILED),
    ),
    (
        "wilicc/gpu-burn #1: AER",
        [
            (
                "pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction "
                "Layer, id=0010(Receiver ID)"
            ),
            "pcieport 0000:00:02.0:   device [8086:6f04] error status/mask=00000020/00000000",
            "nvidia 0000:02:00.0: device has no AER-aware driver",
        ],
        ("0000:02:00", LINK_FAILED),
    ),
    (
        "Linux, aer.c: of the GPU itself",
        [
            (
                "nvidia 0000:03:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), "
                "type=Inaccessible, (Unregistered Agent ID)"
            )
        ],
        ("0000:03:00", LINK_FAILED),
    ),
    (
        "Linux, pci.c",
        ["nvidia 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible"],
        ("0000:01:00", INACCESSIBLE),
    ),
    (
        "NVIDIA/open-gpu-kernel-modules #1229: not fatal",
        [
            ("pcieport 0000:00:01.2: AER: Uncorrectable (Non-Fatal) error received from 0000:63:00.0"),
            "nvidia 0000:63:00.0: AER: can't recover (no error_detected callback)",
            "pcieport 0000:62:00.0: AER: device recovery failed",
        ],
        None,
    ),
    (
        "pop-os/pop #3363: corrected",
        [
            ("pcieport 0000:00:03.1: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)"),
            "nvidia 0000:03:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer",
        ],
        None,
    ),
    (
        "NVIDIA/nvidia-docker #1553: of another function",
        [("nvidia-gpu 0000:09:00.3: Refused to change power state, currently in D3")],
        None,
    ),
    ("open driver: a GPU is named", ["NVRM: GPU at PCI:0000:b3:00: GPU-00000000-0000-0000-0000-000000000000"], None),
    (
        "another device's error",
        ["nvme 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"],
        None,
    ),
]


def told(records: list[str]) -> list[object]:
    reader = LostGpuLines()
    found = [reader.read(text, 100.0 + number / 1000) for number, text in enumerate(records)]
    return [each for each in found if each is not None]


@pytest.mark.parametrize(("origin", "records", "expected"), REPORTED, ids=[row[0] for row in REPORTED])
def test_reported_lines(origin: str, records: list[str], expected: object) -> None:
    assert told(records) == ([expected] if expected is not None else [])


@pytest.mark.parametrize("records", [row[1] for row in REPORTED], ids=[row[0] for row in REPORTED])
@pytest.mark.parametrize("around", ["x {}", "NVRM: {}", "NVRM: Xid (PCI:0000:18:00): 31, pid=1, name={}, Ch 1"])
def test_lines_that_quote_them(records: list[str], around: str) -> None:
    assert told([around.format(text) for text in records]) == []


@pytest.mark.parametrize("text", sorted({record for row in REPORTED for record in row[1]}))
@pytest.mark.parametrize("kernel", ["{}[12]: segfault at 0 ip 0 sp 0 error 4", "traps: {}[12] trap invalid opcode"])
def test_programs_with_such_names(text: str, kernel: str) -> None:
    assert told([kernel.format(text[:15])]) == []


def test_lines_that_are_far_apart_belong_to_different_errors() -> None:
    reader = LostGpuLines()
    for records in (REPORTED[7][1], REPORTED[8][1]):
        assert [reader.read(text, 10.0 * number) for number, text in enumerate(records)] == [None] * len(records)


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    LostGpuLines().read(text, 1.0)


def test_a_gpu_that_is_gone_is_told_of_in_whatever_words() -> None:
    """The driver's line without an Xid, one record of three lines, and none that user space has written."""
    gone = "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus."

    async def test(device: Device) -> None:
        published: list[Evidence] = []
        sensor = KernelLogSensor(published.append, path=device.path)
        device.print(1, gone, level=1 << 3 | 3)
        device.print(2, gone)
        device.print(
            3,
            "NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\\x0a"
            "NVRM: fallen off the bus and is not responding to commands.\\x0a",
        )
        await until(lambda: len(published) == 2)
        told = [(evidence.serial, evidence.gpu, evidence.what) for evidence in published]
        assert told == [("kmsg:2", "0000:18:00", GONE), ("kmsg:3", "0000:b3:00", GONE)]
        sensor.close()

    run(test)
