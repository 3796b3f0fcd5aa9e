"""Debian's modprobe, with the line that `mpsguard-kmod dkms` writes: which nvidia-uvm the kernel has in the end."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from kmod_patch import dkms, modprobe
from tests.vm import workshop
from tests.vm.machine import base_archive, boot
from tests.vm.python_archive import add_shared_libraries
from tests.vm.sources import Kernel, driver_tree

pytestmark = [pytest.mark.slow(seconds=30, reason="boots a virtual machine without KVM"), pytest.mark.timeout(3600)]

DEADLINE_S = 600.0
KMOD, DASH = Path("/bin/kmod"), Path("/bin/dash")
OURS = "/sys/module/nvidia_uvm/parameters/uvm_fault_isolation"
POLICY = 2


def attempt(name: str) -> list[str]:
    """Shell lines: load, say what is loaded, unload."""
    told = {"case": name, "status": "$S", "loaded": "$L", "policy": "$P"}
    return [
        "/sbin/modprobe nvidia-uvm 2>/dev/console; S=$?",
        f"busybox test -d /sys/module/nvidia_uvm && L=stock || L=none; P=$(busybox cat {OURS} 2>/dev/null) && L=ours",
        f"busybox cat >/dev/ttyS1 <<END\n{json.dumps(told)}\nEND",
        "busybox rmmod nvidia_uvm; busybox rmmod nvidia",
    ]


def damaged(module: Path, what: bytes, by: bytes, target: Path) -> Path:
    """A copy in which one text is another."""
    content = module.read_bytes()
    assert what in content
    assert len(what) == len(by)
    target.write_bytes(content.replace(what, by))
    return target


@pytest.mark.skipif(not KMOD.exists(), reason="modprobe is not installed (Debian: kmod)")
@pytest.mark.parametrize("branch", ["550"], indirect=True)
def test_the_stock_module_is_loaded_where_ours_does_not_fit(kernel: Kernel, branch: str, tmp_path: Path) -> None:
    tree = driver_tree(branch)
    version = modinfo(workshop.build(tree, kernel, patched=False).uvm)
    ours = workshop.build(tree, kernel, patched=True).uvm
    place = f"lib/modules/{kernel.release}"
    updates = f"{place}/updates/dkms/{dkms.NAME}.ko"
    files = {
        f"{place}/kernel/nvidia.ko": workshop.build(tree, kernel, patched=False).mock,
        f"{place}/kernel/nvidia-uvm.ko": workshop.build(tree, kernel, patched=False).uvm,
        updates: ours,
        "kept/ours": ours,
        "kept/other-driver": damaged(ours, b"version=" + version, b"version=9" + version[1:], tmp_path / "driver"),
        "kept/other-kernel": damaged(ours, b" mod_unload ", b" no_unload_ ", tmp_path / "kernel"),
    }
    archive = base_archive()
    for name, source in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).symlink_to(source)
        archive.file(name, source)
    subprocess.run(["/sbin/depmod", "-b", str(tmp_path / "root"), kernel.release], check=True, timeout=60.0)
    for index in (tmp_path / "root" / place).glob("modules.*"):
        archive.file(f"{place}/{index.name}", index)
    archive.file("bin/kmod", KMOD)
    for name in ("modprobe", "modinfo"):
        archive.link(f"sbin/{name}", "../bin/kmod")
    # A shell that takes programs of these names for its own would not do.
    archive.file("bin/dash", DASH)
    archive.link("bin/sh", "dash")
    add_shared_libraries(archive, KMOD, DASH)
    archive.text(
        "etc/modprobe.d/mpsguard-kmod.conf", modprobe.line(dkms.NAME, modprobe.stock_command(dkms.NAME, tmp_path))
    )
    # What is set for nvidia-uvm is for ours.
    archive.text("etc/modprobe.d/options.conf", f"options nvidia-uvm uvm_fault_isolation={POLICY}\n")
    steps = attempt("ours fits")
    for case in ("other-driver", "other-kernel"):
        steps += [f"busybox cp /kept/{case} /{updates}", *attempt(case)]
    steps += [f"busybox rm /{updates}", *attempt("gone")]
    steps += [f"busybox cp /kept/ours /{updates}", *attempt("back")]
    run = boot(kernel, archive, steps, deadline_s=DEADLINE_S)
    loaded = {line["case"]: (line["status"], line["loaded"], line["policy"]) for line in run.lines}
    fits, stock = ("0", "ours", str(POLICY)), ("0", "stock", "")
    assert loaded == {
        "ours fits": fits, "other-driver": stock, "other-kernel": stock, "gone": stock, "back": fits
    }, run.console[-3000:]  # fmt: skip
    assert run.console.count("the stock module is loaded") == 3


def modinfo(module: Path) -> bytes:
    """A module's version."""
    command = ["/sbin/modinfo", "-F", "version", str(module)]
    return subprocess.run(command, capture_output=True, check=True, timeout=60.0).stdout.strip()
