"""A machine in a directory: two kernels, a stock driver, DKMS's folders; what `modprobe nvidia-uvm` would load there.

The modules are files of our own with the names and versions of real ones, which modinfo, depmod and modprobe read;
nothing is loaded. dkms, depmod and modprobe are Debian's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.unit.kmod import trees

KERNEL, NEW_KERNEL = "6.1.0-1-test", "6.1.0-2-test"
ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 120.0
TOOLS = {"dkms": "dkms", "modprobe": "kmod", "depmod": "kmod", "gcc": "gcc", "make": "make", "spatch": "coccinelle"}

MODULE_C = """\
#define INFO(name, text) \\
    static const char name[] __attribute__((section(".modinfo"), used, aligned(1))) = #name "=" text
INFO(license, "Dual MIT/GPL");
INFO(version, VERSION);
"""
MAKEFILE = """\
modules:
\tgcc -c -DVERSION='"{version}"' nvidia-uvm/module.c -o nvidia-uvm.ko
"""

# A fault happens once: what takes a failed step back must find the programs as they are.
SHIM = """\
#!/bin/sh
step="{name} $1"
[ "{name}" = depmod ] && step=depmod
fault="$(cat {fault} 2>/dev/null)"
case "$fault" in
"before $step") rm {fault}; echo "error: no more room" >&2; exit 9 ;;
"killed before $step") rm {fault}; kill -9 $PPID; exit 9 ;;
esac
{program} "$@"
status=$?
case "$fault" in
"after $step") rm {fault}; echo "error: no more room" >&2; exit 9 ;;
"killed after $step") rm {fault}; kill -9 $PPID; exit 9 ;;
esac
exit $status
"""


def missing() -> str | None:
    """Why these tests cannot run here; None if they can."""
    for tool, package in TOOLS.items():
        if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            return f"{tool} is not installed (Debian: {package})"
    return None


@dataclass(frozen=True)
class Machine:
    """Everything is below one directory."""

    directory: Path

    @property
    def root(self) -> Path:
        """Its /."""
        return self.directory / "root"

    @property
    def line(self) -> Path:
        """The line of modprobe.d."""
        return self.root / "etc/modprobe.d/mpsguard-kmod.conf"

    def prepare(self) -> None:
        """Set up both kernels with the driver that the distribution has, and headers."""
        for kernel in (KERNEL, NEW_KERNEL):
            for name in ("nvidia", "nvidia-uvm"):
                self.module(kernel, f"kernel/{name}.ko", "580.1.1")
            (self.headers(kernel) / "include").mkdir(parents=True)
            (self.headers(kernel) / "Makefile").write_text("all:\n")
        for folder in ("etc/modprobe.d", "usr/src", "var/lib/dkms"):
            (self.root / folder).mkdir(parents=True)
        (self.directory / "shims").mkdir()
        for name in ("dkms", "depmod"):
            path = shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin")
            self._script(f"shims/{name}", SHIM.format(name=name, program=path, fault=self.directory / "fault"))

    def headers(self, kernel: str) -> Path:
        """Headers of a kernel; of which the miniature driver looks at none."""
        return self.directory / "headers" / kernel

    def module(self, kernel: str, name: str, version: str) -> None:
        """A module's file, with its version, and depmod."""
        source = self.directory / "module.c"
        source.write_text(MODULE_C)
        target = self.root / "lib/modules" / kernel / name
        target.parent.mkdir(parents=True, exist_ok=True)
        command = ["gcc", "-c", f'-DVERSION="{version}"', str(source), "-o", str(target)]
        subprocess.run(command, check=True, timeout=DEADLINE_S)
        depmod = ["/sbin/depmod", "-b", str(self.root), kernel]
        subprocess.run(depmod, check=True, timeout=DEADLINE_S, capture_output=True)

    def tree(self, version: str) -> Path:
        """A driver's source tree of a version that DKMS can build."""
        root = self.directory / f"driver-{version}"
        shutil.rmtree(root, ignore_errors=True)
        trees.make(root)
        kbuild = root / "Kbuild"
        kbuild.write_text(kbuild.read_text().replace("580.1.2", version))
        (root / "Makefile").write_text(MAKEFILE.format(version=version))
        (root / "conftest.sh").touch()
        for folder in ("common", "nvidia"):
            (root / folder).mkdir()
        (root / "nvidia/nv-kernel.o_binary").touch()
        (root / "nvidia-uvm/module.c").write_text(MODULE_C)
        return root

    def kmod(self, *arguments: str, fault: str = "") -> subprocess.CompletedProcess[str]:
        """Run `mpsguard-kmod`, with one fault at most: "before", "after", "killed before" or "killed after" a step."""
        if fault:
            (self.directory / "fault").write_text(fault)
        done = subprocess.run(
            [sys.executable, "-m", "kmod_patch", *arguments],
            cwd=ROOT,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        if fault:
            assert not (self.directory / "fault").exists(), f"the step of {fault!r} was never made: {done.stderr}"
        return done

    def install(self, tree: Path, kernel: str = KERNEL, *, fault: str = "") -> subprocess.CompletedProcess[str]:
        """Run `mpsguard-kmod dkms` for this machine."""
        where = ["--kernel", kernel, "--headers", str(self.headers(kernel))]
        return self.kmod("dkms", str(tree), "--root", str(self.root), *where, fault=fault)

    def dkms(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run dkms itself."""
        places = [
            *("--dkmstree", str(self.root / "var/lib/dkms"), "--sourcetree", str(self.root / "usr/src")),
            *("--installtree", str(self.root / "lib/modules"), "--no-depmod"),
        ]
        return subprocess.run(
            ["dkms", *arguments, *places],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )

    def loaded(self, nvidia: str, kernel: str = KERNEL) -> str:
        """What `modprobe nvidia-uvm` loads once nvidia is, of that version: the module's name and version.

        modprobe says which files it would insert. The command of an `install` line is run by a shell, as modprobe runs
        it, with programs that say what they would insert.
        """
        version, log = self.directory / "version", self.directory / "log"
        version.write_text(f"{nvidia}\n")
        log.unlink(missing_ok=True)
        options = f"-d {self.root} -S {kernel} -C {self.root / 'etc/modprobe.d'}"
        self._script(
            "loading/modprobe",
            f'#!/bin/sh\n/sbin/modprobe {options} --show-depends "$@" >{self.directory}/told || exit\n'
            f"cat {self.directory}/told\n",
        )
        self._script("loading/modinfo", f'#!/bin/sh\nexec /sbin/modinfo -b {self.root} -k {kernel} "$@"\n')
        told = self._told("modprobe nvidia-uvm")
        command = next((line.removeprefix("install ") for line in told if line.startswith("install ")), None)
        if command is not None:
            command = command.replace("/sys/module/nvidia/version", str(version)).replace("/dev/kmsg", str(log))
            told = self._told(command)
        path = told[-1].split()[1]
        return f"{Path(path).stem} {self._version(path)}"

    def says(self) -> str:
        """What the kernel's log would have from the last `loaded`."""
        log = self.directory / "log"
        return log.read_text() if log.exists() else ""

    def contents(self) -> dict[str, bytes | str]:
        """All files and links, but DKMS's and depmod's own notes."""
        found: dict[str, bytes | str] = {}
        for path in self.root.rglob("*"):
            name = str(path.relative_to(self.root))
            if path.is_symlink():
                found[name] = str(path.readlink())
            elif path.is_file() and not path.name.startswith("modules.") and "/log/" not in name:
                found[name] = path.read_bytes()
        return found

    def _told(self, command: str) -> list[str]:
        done = subprocess.run(
            ["sh", "-c", command],
            env={**self._environment(), "PATH": f"{self.directory / 'loading'}:{self._environment()['PATH']}"},
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE_S,
        )
        return done.stdout.splitlines()

    def _version(self, path: str) -> str:
        command = ["/sbin/modinfo", "-F", "version", path]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout.strip()

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self.directory / 'shims'}:{os.environ['PATH']}:/usr/sbin:/sbin"}

    def _script(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
