"""Xid lines: every form the drivers print, and what a process name cannot make of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.evidence import Evidence, Xid
from mpsguard.guard.sensors.kernel_lines import GONE, INACCESSIBLE, LINK_FAILED, LostGpuLines, parse_xid_line
from mpsguard.guard.sensors.kernel_log import KernelLogSensor
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
FAULT_31 = (
    "intr 00000000. MMU Fault: ENGINE GRAPHICS GPC0 GPCCLIENT_T1_1 faulted @ 0x484_c6b3c000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
)

# Text, where its form is from, what it is.
LINES = [
    (
        f"NVRM: Xid (PCI:0000:32:00): 31, pid=112468, name=worker, channel 0x00000002, {FAULT_31}",
        "public report, open driver 580",
        ("0000:32:00", "", 31, 112468, 2, (0, None, None)),
    ),
    (
        (
            "NVRM: Xid (PCI:0000:00:07): 31, pid=2512125, name=python3.10, Ch 00000008, intr 00000000. MMU Fault: "
            "ENGINE GRAPHICS GPCCLIENT_T1_8 faulted @ 0x73ac_1c000000. Fault is of type FAULT_PDE "
            "ACCESS_TYPE_VIRT_WRITE"
        ),
        "akash-network/support #244, 535.183.01",
        ("0000:00:07", "", 31, 2512125, 8, (None, None, None)),
    ),
    (
        (
            "NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on "
            "(GPC 7, TPC 6, SM 1): Illegal Instruction Parameter"
        ),
        "leptonai/gpud #46",
        ("0000:cb:00", "", 13, None, None, (7, 6, 1)),
    ),
    (
        (
            "NVRM: Xid (PCI:0002:00:00): 13, pid=2519562, name=python3, Graphics Exception: ChID 000c, Class 0000cbc0, "
            "Offset 00000000, Data 00000000"
        ),
        "NVSentinel's notes on Xid 13",
        ("0002:00:00", "", 13, 2519562, 12, (None, None, None)),
    ),
    (
        "NVRM: Xid (PCI:0009:01:00): 13, Graphics SM Warp Exception on (GPC 0, TPC 3): Out Of Range Address",
        "the same, without process and SM",
        ("0009:01:00", "", 13, None, None, (0, 3, None)),
    ),
    (
        "NVRM: Xid (PCI:0000:2a:00): 43, pid=1238258, name=ray::_RayTrainW, channel 0x00000002",
        "public report",
        ("0000:2a:00", "", 43, 1238258, 2, (None, None, None)),
    ),
    (
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 0000000c caused by previous Xid 149",
        "NVIDIA/open-gpu-kernel-modules #1150, 590.48.01",
        ("0000:dc:00", "", 45, 1818990, 12, (None, None, None)),
    ),
    (
        "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
        "comment in kern_gpu_error_cont_ga100.c",
        ("0000:01:00", "GPU-I:05", 94, 7194, None, (None, None, None)),
    ),
    (
        "NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, Graphics Exception",
        "made from the format in krcReportXid",
        ("0000:3b:00", "GPU-I:01 GPU-CI:02", 13, 9, None, (None, None, None)),
    ),
    (
        "NVRM: Xid (PCI:0000:65:00): 119, pid='N/A', Timeout waiting for RPC from GSP",
        "public guide",
        ("0000:65:00", "", 119, None, None, (None, None, None)),
    ),
    (
        "NVRM: Xid (0000:03:00): 14, Channel 00000001",
        "vendor's Xid document, drivers of old",
        ("0000:03:00", "", 14, None, 1, (None, None, None)),
    ),
    (
        "NVRM: Xid (PCI:0000:10:00.0): 79, GPU has fallen off the bus.",
        "made: with the PCI function",
        ("0000:10:00", "", 79, None, None, (None, None, None)),
    ),
    (
        "NVRM: Xid (PCI:00000000:AF:00.0): 79, pid=0, name=, GPU has fallen off the bus.",
        "made: the address as NVML writes it",
        ("0000:af:00", "", 79, None, None, (None, None, None)),
    ),
    (
        "NVRM: Xid (PCI:0000:08:00): 69, Class Error: ChId 003b, Class 0000c197, Offset 00002040, Data 00004b30",
        "public report",
        ("0000:08:00", "", 69, None, 0x3B, (None, None, None)),
    ),
    (
        "NVRM: Xid (PCI:0000:08:00): 62",
        "made: nothing behind the number",
        ("0000:08:00", "", 62, None, None, (None,) * 3),
    ),
]

NONE_OF_OURS = [
    "NVRM: GPU at PCI:0000:00:05: GPU-efbdfde9-5798-a6e7-4c46-12518fa15375",
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error",
    "x NVRM: Xid (PCI:0000:18:00): 31, quoted by another",
    "NVRM: Xid (PCI:[1234]: segfault at 0 ip 0 sp 0 error 4",
    "NVRM: Xid (PCI:0000:18:00): abc, pid=1",
    "NVRM: Xid (PCI:0000:18:00): 123456789, pid=1",
    "",
]


@pytest.mark.parametrize(("text", "origin", "expected"), LINES, ids=[origin for _, origin, _ in LINES])
def test_every_form_of_the_line(text: str, origin: str, expected: tuple[object, ...]) -> None:
    line = parse_xid_line(text)
    assert line is not None
    xid = line.xid
    found = (line.gpu, line.instance, xid.number, xid.pid, xid.channel, (xid.gpc, xid.tpc, xid.sm))
    assert found == expected


@pytest.mark.parametrize("text", NONE_OF_OURS)
def test_other_lines(text: str) -> None:
    assert parse_xid_line(text) is None


def test_the_text_is_what_follows_the_process() -> None:
    line = parse_xid_line("NVRM: Xid (PCI:0000:18:00): 43, pid=7, name=a program, Ch 00000008")
    assert line is not None
    assert line.xid == Xid(number=43, pid=7, text="Ch 00000008", channel=8)


@pytest.mark.parametrize("name", ["a, Ch 0000ffff", ", pid=99, b", "x\n, Ch ffff", "a, GPC 9, TPC 9"])
def test_a_process_name_says_nothing(name: str) -> None:
    real = "Ch 00000008, Graphics SM Warp Exception on (GPC 1, TPC 2, SM 3): Out Of Range Address"
    line = parse_xid_line(f"NVRM: Xid (PCI:0000:18:00): 13, pid=7, name={name.replace(chr(10), '?')}, {real}")
    assert line is not None
    xid = line.xid
    assert (xid.number, xid.pid, xid.channel, xid.gpc, xid.tpc, xid.sm) == (13, 7, 8, 1, 2, 3)


@given(
    st.text(max_size=200)
    | st.builds("NVRM: Xid (PCI:0000:18:00{}): {}, pid={}, name={}, {}".format, *[st.text(max_size=40)] * 5)
    | st.builds("NVRM: Xid (PCI:0000:18:00): 31, pid={}, name={}, {}".format, *[st.text(max_size=60)] * 3)
)
def test_any_text_is_an_xid_or_none(text: str) -> None:
    line = parse_xid_line(text)
    if line is not None:
        assert line.xid.text.isprintable()
        assert line.xid.pid is None or 0 < line.xid.pid < 1 << 22


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
