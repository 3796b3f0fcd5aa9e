"""What is run inside the virtual machine, and how: modules loaded, a program, modules unloaded."""

from __future__ import annotations

from tests.vm.archive import Archive
from tests.vm.guest_programs import program
from tests.vm.machine import Run, base_archive, boot
from tests.vm.sources import Kernel
from tests.vm.workshop import Modules

LOAD = ["busybox insmod /nvidia.ko", "busybox insmod /nvidia-uvm.ko"]
UNLOAD = ["busybox rmmod nvidia_uvm 2>/dev/console || S=90", "busybox rmmod nvidia 2>/dev/console || S=91"]


def with_modules(modules: Modules) -> Archive:
    """An archive to boot from, with the mock GPU and nvidia-uvm in it."""
    archive = base_archive()
    archive.file("nvidia.ko", modules.mock)
    archive.file("nvidia-uvm.ko", modules.uvm)
    return archive


def run_program(
    kernel: Kernel,
    modules: Modules,
    name: str,
    *arguments: str,
    parameters: str = "",
    boot_with: str = "",
    deadline_s: float,
) -> Run:
    """Load the modules, run one of the guest programs, unload; status 90 and 91 say that unloading failed.

    `parameters` are nvidia-uvm's, `boot_with` the kernel's.
    """
    archive = with_modules(modules)
    archive.file("program", program(name, modules.tree))
    steps = [
        "busybox insmod /nvidia.ko || busybox echo no mock > /dev/kmsg",
        f"busybox insmod /nvidia-uvm.ko {parameters} || busybox echo no uvm > /dev/kmsg",
        f"/program {' '.join(arguments)} >/dev/ttyS1 2>/dev/console; S=$?",
        *UNLOAD,
        "(exit $S)",
    ]
    return boot(kernel, archive, steps, deadline_s=deadline_s, arguments=boot_with)
