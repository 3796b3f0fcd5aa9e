"""One run of a virtual machine: QEMU without KVM (TCG), a kernel, an archive to boot from, a program, its lines.

The program's standard output goes to the second serial port, one line a result; kernel log and complaints go to the
first. The machine ends by itself when the program has ended, and is ended at a deadline.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.vm.archive import Archive
from tests.vm.sources import Kernel

MEMORY_MIB = 2048
CALM = "no_timer_check rcupdate.rcu_cpu_stall_timeout=120"
"""For a machine that its host starves: that is no fault of the kernel in it."""
QUICK = "tsc=reliable cryptomgr.notests"
"""The clock is read without leaving the emulated processor, and the kernel does not test its own ciphers."""
PROCESSOR = "Nehalem"
"""Whatever it has, the kernel and the C library use, and emulated that can cost more than to do without: string
instructions and vectors of newer ones make the same cases take a third more."""

DONE = "guest: the program ended with status "

INIT = """\
#!/bin/busybox sh
export PATH=/bin:/usr/bin:/sbin:/usr/sbin
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
busybox mkdir -p /dev/shm /tmp /run
busybox mount -t tmpfs tmp /tmp
busybox mount -t tmpfs run /run
busybox ip link set lo up 2>/dev/null
{steps}
busybox echo "{done}$?" > /dev/kmsg
busybox sync
busybox echo b > /proc/sysrq-trigger
busybox sleep 60
"""

# What the kernel and nvidia-uvm print when something is wrong. By case: a starved machine's "MP-BIOS bug" is none.
TROUBLE = re.compile(
    r"\bBUG: |\bWARNING: |\bOops\b|general protection fault|Kernel panic|INFO: task .* blocked|rcu: .*stall"
    r"|possible circular locking|inconsistent lock state|KASAN: |UBSAN: |Assert failed|Memory leak of"
    r"|Already acquired equivalent|Releasing lock|invalid lock order|Failed to acquire the thread context"
)


@dataclass(frozen=True)
class Run:
    """What a run gave."""

    output: str
    console: str

    @property
    def status(self) -> int | None:
        """Exit status of the program; None if it did not end."""
        found = re.search(re.escape(DONE) + r"(\d+)", self.console)
        return int(found[1]) if found else None

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its output, each line an object."""
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]

    @property
    def trouble(self) -> list[str]:
        """Lines of the kernel log that tell of a bug."""
        return [line for line in self.console.splitlines() if TROUBLE.search(line)]


def base_archive() -> Archive:
    """Busybox and the directories that a program expects."""
    archive = Archive()
    for name in ("proc", "sys", "dev", "tmp", "run", "root"):
        archive.directory(name)
    archive.file("bin/busybox", Path("/bin/busybox"))
    for applet in ("sh", "ls", "cat", "dmesg"):
        archive.link(f"bin/{applet}", "busybox")
    return archive


def boot(
    kernel: Kernel,
    archive: Archive,
    steps: Sequence[str],
    *,
    deadline_s: float,
    processors: int = 2,
    extra: Sequence[str] = (),
    arguments: str = "",
) -> Run:
    """Boot, run `steps` (shell lines; the status of the last counts), wait for the end."""
    with tempfile.TemporaryDirectory(prefix="mpsguard-vm-") as name:
        directory = Path(name)
        write_archive(archive, steps, directory)
        serial = ("-serial", f"file:{directory / 'output'}")
        command = [*command_line(kernel, directory, processors, arguments), *serial, *extra]
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=deadline_s)
        except subprocess.TimeoutExpired:
            pass  # told by a run without a status
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"QEMU: {error.stderr.decode(errors='replace').strip()}") from None
        return Run(output=_text(directory / "output"), console=_text(directory / "console"))


def write_archive(archive: Archive, steps: Sequence[str], directory: Path) -> None:
    """The archive with the steps as its init, in a file in the directory."""
    archive.text("init", INIT.format(steps="\n".join(steps), done=DONE), executable=True)
    (directory / "initramfs").write_bytes(archive.content())


def command_line(kernel: Kernel, directory: Path, processors: int, arguments: str = "") -> list[str]:
    """QEMU, with the archive and the first serial port in the directory; the second port is the caller's."""
    return [
        "qemu-system-x86_64",
        *("-accel", "tcg,thread=multi" if processors > 1 else "tcg"),
        *("-machine", "q35", "-cpu", PROCESSOR, "-smp", str(processors), "-m", str(MEMORY_MIB)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-serial", f"file:{directory / 'console'}"),
        *("-kernel", str(kernel.image), "-initrd", str(directory / "initramfs")),
        *("-append", f"console=ttyS0 panic=-1 quiet loglevel=6 mitigations=off nokaslr {CALM} {QUICK} {arguments}"),
    ]


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace").replace("\r", "") if path.exists() else ""
