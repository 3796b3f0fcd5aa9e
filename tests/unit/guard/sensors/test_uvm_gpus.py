"""On which GPU a fault was: the driver's processor numbers, brought to PCI addresses by what /proc shows."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest

from mpsguard.linux.nvidia.uvm_events import V1, V2
from mpsguard.linux.nvidia.uvm_processors import GpuAddresses, gpu_uuids, whole_gpu
from mpsguard.linux.nvidia.uvm_tools import NotAVaSpaceError
from tests.harness.waiting import until
from tests.unit.guard.sensors.uvm_bench import OPEN_SPACE, Bench, scenario
from tests.unit.guard.sensors.uvm_driver import FATAL_FAULT, GPU_FAULT, Release, StandInDriver

ONE, TWO = UUID("4a7f2a5c-6f6b-0c1c-8f5e-0123456789ab"), UUID("ffffffff-1111-2222-3333-444444444444")
EVERY_RELEASE = pytest.mark.parametrize("release", list(Release))

INFORMATION = """\
Model: \t\t NVIDIA H200
IRQ:   \t\t 57
GPU UUID: \t GPU-{uuid}
Video BIOS: \t 96.00.d0.00.01
Bus Type: \t PCIe
Bus Location: \t {place}
GPU Excluded:\t No
"""


def proc_gpus(directory: Path, *gpus: tuple[str, UUID]) -> Path:
    """A directory as /proc/driver/nvidia/gpus is (nv-procfs.c)."""
    for place, uuid in gpus:
        (directory / place).mkdir(parents=True)
        (directory / place / "information").write_text(INFORMATION.format(uuid=uuid, place=place))
        (directory / place / "power").write_text("Runtime D3 status: Disabled\n")
    return directory


@EVERY_RELEASE
def test_every_release_says_which_gpus_an_address_space_has(release: Release) -> None:
    driver = StandInDriver(release)
    driver.uuids = {1: ONE.bytes, 3: TWO.bytes}
    layout = V2 if release is Release.R580 else V1
    space = os.open("/dev/full", os.O_RDWR | os.O_APPEND)
    plain = os.open("/dev/full", os.O_RDWR)
    try:
        assert gpu_uuids(driver, space, layout) == {1: f"GPU-{ONE}", 3: f"GPU-{TWO}"}
        driver.uuids = {}
        assert gpu_uuids(driver, space, layout) == {}
        with pytest.raises(NotAVaSpaceError, match="0x16"):
            gpu_uuids(driver, plain, layout)
    finally:
        os.close(space)
        os.close(plain)


def test_an_instance_of_a_gpu_is_of_that_gpu() -> None:
    """Each GPU has eight numbers in the second layout (UVM_PARENT_ID_MAX_SUB_PROCESSORS); 0 is the CPU in both."""
    assert [whole_gpu(number, V2) for number in (0, 1, 8, 9, 16, 17, 256)] == [0, 1, 1, 2, 2, 3, 32]
    assert [whole_gpu(number, V1) for number in (0, 1, 2, 32)] == [0, 1, 2, 32]


def test_addresses_are_those_of_the_kernel_log(tmp_path: Path) -> None:
    addresses = GpuAddresses(proc_gpus(tmp_path / "gpus", ("0000:18:00.0", ONE)))
    assert addresses.of(f"GPU-{ONE}") == "0000:18:00"
    assert addresses.of(f"GPU-{TWO}") is None
    proc_gpus(tmp_path / "gpus", ("0001:af:00.0", TWO))
    assert addresses.of(f"GPU-{TWO}") == "0001:af:00"
    assert GpuAddresses(tmp_path / "nothing").of(f"GPU-{ONE}") is None


def test_a_fault_says_on_which_gpu_it_was(tmp_path: Path) -> None:
    gpus = proc_gpus(tmp_path, ("0000:18:00.0", ONE), ("0000:2a:00.0", TWO))

    async def body(bench: Bench) -> None:
        bench.driver.uuids = {1: ONE.bytes, 2: TWO.bytes, 4: bytes(range(16))}
        process = bench.process(OPEN_SPACE)
        await bench.came(process.handle)
        (fatal,), (other,) = bench.driver.live(FATAL_FAULT), bench.driver.live(GPU_FAULT)
        # The second layout: 1 and 9 are the first instances of the two GPUs, 10 another of the second.
        for number, processor in enumerate((1, 9, 10, 17, 25, 0)):
            fatal.put(FATAL_FAULT, at=number, gpu=processor)
        other.put(GPU_FAULT, at=99, gpu=9)
        await until(lambda: len(bench.evidence) == 7)
        by_address = {one.what.address: one.gpu for one in bench.evidence if hasattr(one.what, "address")}
        assert by_address == {
            0: "0000:18:00",
            1: "0000:2a:00",
            2: "0000:2a:00",
            3: None,
            4: None,
            5: None,
            99: "0000:2a:00",
        }

    scenario(body, gpus=gpus)


def test_a_gpu_that_is_registered_after_the_handshake_is_learned(tmp_path: Path) -> None:
    gpus = proc_gpus(tmp_path, ("0000:18:00.0", ONE))

    async def body(bench: Bench) -> None:
        process = bench.process(OPEN_SPACE)
        await bench.came(process.handle)
        (queue,) = bench.driver.live(FATAL_FAULT)
        queue.put(FATAL_FAULT, at=1, gpu=1)
        await until(lambda: bench.evidence)
        bench.driver.uuids = {1: ONE.bytes}
        asked = bench.driver.asked_for_uuids
        await until(lambda: bench.driver.asked_for_uuids > asked + 1)
        queue.put(FATAL_FAULT, at=2, gpu=1)
        await until(lambda: len(bench.evidence) == 2)
        assert [one.gpu for one in bench.evidence] == [None, "0000:18:00"]

    scenario(body, gpus=gpus)
