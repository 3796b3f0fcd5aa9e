"""Output of nvidia-smi, row by row: good GPUs are served, whatever it says of others."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.dropin import nvidia_smi
from mpsguard.guard.dropin.nvidia_smi import NvidiaSmiError, read
from mpsguard.guard.dropin.plugin_config import Gpu
from mpsguard.linux.nvidia import nvidia_gpus

FIRST = "0, GPU-11111111-2222-3333-4444-555555555555, 81559, 9.0, Disabled"
SECOND = "1, GPU-66666666-7777-8888-9999-000000000000, 81559, 9.0, Disabled"
GOOD = (
    Gpu(0, "GPU-11111111-2222-3333-4444-555555555555", 81559, (9, 0), False),
    Gpu(1, "GPU-66666666-7777-8888-9999-000000000000", 81559, (9, 0), False),
)

# Lines that are no rows, and where people have reported them.
REPORTED = [
    ("NVIDIA/gpu-operator #285", "WARNING: infoROM is corrupted at gpu 0000:00:1E.0"),
    ("microsoft/pai #3756", "WARNING: infoROM is corrupted at gpu 0000:B3:00.0"),
    ("NVIDIA/k8s-device-plugin #231", ("Unable to determine the device handle for GPU 0000:C1:00.0: GPU is lost.  "
     "Reboot the system to recover this GPU")),
    ("JosephKJ/OWOD #81", ("Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  "
     "Reboot the system to recover this GPU")),
    ("NVIDIA/open-gpu-kernel-modules #387",
     "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error"),
    ("NVIDIA/nvidia-docker #1553", "Unable to determine the device handle for GPU 0000:09:00.0: Unknown Error"),
    ("NVIDIA/nvidia-container-toolkit #69", "Unable to determine the device handle for GPU0000:65:00.0: Unknown Error"),
    ("NVIDIA/dcgm-exporter #604", "Unable to determine the device handle for GPU 000:BA:80.0: Unknown Error"),
    ("cihlab/fics-cluster-guide #53", "Unable to determine the device handle for GPU0000:20:00.0: Unknown Error"),
    ("pdbear/syno_nvidia_gpu_driver #22", "Unable to determine the device handle for GPU0000:07:00.0: Unknown Error"),
    ("jamesstringer90/Easy-GPU-PV #276", "Unable to detect the device handle for GPU0000:B1:00.0: Unknown Error"),
    ("enkore/i3pystatus #850: a cell", "2, GPU-22222222-2222-2222-2222-222222222222, [Unknown Error], 9.0, Disabled"),
    ("HSF/prmon #317: a vGPU", "2, GPU-22222222-2222-2222-2222-222222222222, 24576, [N/A], [N/A]"),
    ("k8s-device-plugin #2038: cells", "2, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]"),
    ("cells of a GPU to be reset", ("2, GPU-22222222-2222-2222-2222-222222222222, [GPU requires reset], "
     "[GPU requires reset], [GPU requires reset]")),
    ("a state of MIG that cannot be read", "2, GPU-22222222-2222-2222-2222-222222222222, 81559, 9.0, [Unknown Error]"),
    ("a header, of a release without noheader", "index, uuid, memory.total [MiB], compute_cap, mig.mode.current"),
]  # fmt: skip


@pytest.mark.parametrize(("origin", "line"), REPORTED, ids=[origin for origin, _ in REPORTED])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_line_that_is_no_row_costs_itself_alone(origin: str, line: str, at: int) -> None:
    lines = [FIRST, SECOND]
    lines.insert(at, line)
    answer = read("\n".join(lines) + "\n")
    assert (answer.gpus, answer.others) == (GOOD, (line,))


@pytest.mark.parametrize("cell", ["[N/A]", "N/A", "[Not Supported]", "Not Supported"])
def test_a_gpu_without_memory_of_its_own_or_without_mig_is_served(cell: str) -> None:
    # NVIDIA/k8s-device-plugin #1483 (GB10), and Grace.
    answer = read(f"0, {GOOD[0].uuid}, {cell}, 12.1, {cell}\n")
    assert answer.gpus == (Gpu(0, GOOD[0].uuid, 0, (12, 1), False),)


def test_of_two_rows_of_one_gpu_the_first_counts() -> None:
    assert read(f"{FIRST}\n{FIRST}\n0, {GOOD[1].uuid}, 1, 9.0, Disabled\n").gpus == GOOD[:1]


@given(st.lists(st.one_of(st.sampled_from([FIRST, SECOND]), st.text(max_size=60))))
def test_good_rows_are_found_among_any_text(lines: list[str]) -> None:
    text = "\n".join(line.replace("\n", " ") for line in lines)
    there = {gpu for gpu, row in zip(GOOD, (FIRST, SECOND), strict=True) if row in text.splitlines()}
    answer = read(text)
    assert there <= set(answer.gpus)
    assert all(line.isprintable() and len(line) <= 200 for line in answer.others)


def program(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program of that name and content first on PATH."""
    path = directory / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


@pytest.mark.parametrize("status", [0, 14, 15, 255])
def test_good_gpus_are_served_whatever_the_status_and_the_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    warning = REPORTED[0][1]
    output = shlex.quote(f"{warning}\n{FIRST}\n{SECOND}\n{warning}\n")
    program(tmp_path, monkeypatch, f"printf %s {output}; exit {status}")
    named: list[str] = []
    assert nvidia_smi.gpus(named.append) == list(GOOD)
    assert named == [warning]


def test_where_it_ends_at_the_first_that_is_lost_the_others_are_asked_for_by_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = REPORTED[2][1]
    monkeypatch.setattr(nvidia_gpus, "addresses", lambda: ["0000:c1:00.0", "0000:18:00.0"])
    program(
        tmp_path,
        monkeypatch,
        f'case "$*" in "-i 0000:18:00.0 "*) echo {shlex.quote(FIRST)};; *) echo {shlex.quote(lost)}; exit 15;; esac',
    )
    named: list[str] = []
    assert nvidia_smi.gpus(named.append) == [GOOD[0]]
    assert named == [lost]


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95", 18),
        ("Failed to initialize NVML: Unknown Error", 255),  # NVIDIA/nvidia-docker #1671
        ('Field "compute_cap" is not a valid field to query.', 2),
        (REPORTED[2][1], 15),
        ("WARNING: something new", 0),
    ],
)
def test_where_no_gpu_is_told_of_the_reason_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, status: int
) -> None:
    program(tmp_path, monkeypatch, f"echo {shlex.quote(output)}; exit {status}")
    with pytest.raises(NvidiaSmiError, match=output.partition('"')[0][:20].replace("(", ".")):
        nvidia_smi.gpus()


@pytest.mark.parametrize("status", [0, 6])
def test_a_machine_without_gpus_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    program(tmp_path, monkeypatch, f"echo No devices were found; exit {status}")
    assert nvidia_smi.gpus() == []


def test_a_corrupted_inforom_does_not_fail_the_compute_mode_and_another_status_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, monkeypatch, f"echo {shlex.quote(REPORTED[0][1])}; exit 14")
    nvidia_smi.set_compute_mode([GOOD[0].uuid], "DEFAULT")
    program(tmp_path, monkeypatch, "echo Insufficient Permissions; exit 4")
    with pytest.raises(NvidiaSmiError, match="status 4: Insufficient"):
        nvidia_smi.set_compute_mode([GOOD[0].uuid], "DEFAULT")
