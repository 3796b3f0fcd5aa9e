"""A DKMS package of the patched nvidia-uvm, beside the driver's own, and the way back.

The module's file is called mpsguard-nvidia-uvm.ko: it lies beside the stock one and replaces nothing. That
`modprobe nvidia-uvm` takes it is one line in modprobe.d; without that line the stock module is loaded as ever.

DKMS strips what it has built and signs it with its own key (`mok_signing_key` in /etc/dkms/framework.conf), after all
that a package can have done: a signature of ours would be lost or covered by that one.
"""

import re
import shutil
from pathlib import Path
from typing import Final

import msgspec

from kmod_patch import VERSION, state
from kmod_patch.build import copy_tree
from kmod_patch.errors import KmodError, ToolError, TreeError
from kmod_patch.kernel import Headers
from kmod_patch.patch import make_plan
from kmod_patch.program import run, told
from kmod_patch.tree import Tree

NAME: Final = "mpsguard-nvidia-uvm"
DKMS_DEADLINE_S: Final = 1800.0


class DkmsError(KmodError):
    """dkms refuses, or fails."""

    status = 9


class Layout(msgspec.Struct, frozen=True):
    """Where things go; ``root`` is / but for tests and images."""

    root: Path = Path("/")

    @property
    def sources(self) -> Path:
        """Source trees of DKMS."""
        return self.root / "usr" / "src"

    @property
    def modprobe(self) -> Path:
        """The line that makes `modprobe nvidia-uvm` take ours."""
        return self.root / "etc" / "modprobe.d" / "mpsguard-kmod.conf"

    @property
    def state(self) -> Path:
        """Where DKMS builds."""
        return self.root / "var" / "lib" / "dkms"

    def options(self) -> list[str]:
        """For dkms."""
        if self.root == Path("/"):
            return []
        return [
            *("--dkmstree", str(self.state)),
            *("--sourcetree", str(self.sources)),
            *("--installtree", str(self.root / "lib" / "modules")),
            # It would be run for the machine's own /lib/modules.
            "--no-depmod",
        ]


def package_version(driver: str) -> str:
    """The driver's version with a suffix of our own."""
    return f"{driver}+mpsguard{VERSION}"


def install(tree: Tree, headers: Headers, layout: Layout) -> str:
    """Add, build and install the package for one kernel; returns its version. If it fails, all of it is taken back."""
    if shutil.which("dkms") is None:
        raise ToolError("dkms is not installed (Debian: dkms)")
    version = package_version(tree.version)
    target = layout.sources / f"{NAME}-{version}"
    if target.exists():
        raise TreeError(f"{target}: is there already; `mpsguard-kmod dkms --remove` takes it away")
    condition, _ = state.condition(tree)
    try:
        copy = copy_tree(tree, target)
        if condition == "stock":
            state.apply(make_plan(copy))
        _write_package(copy, version, headers)
        for action in ("add", "build", "install"):
            kernel = [] if action == "add" else ["-k", headers.release, "--kernelsourcedir", str(headers.build)]
            _dkms(layout, action, "-m", NAME, "-v", version, *kernel)
        layout.modprobe.parent.mkdir(parents=True, exist_ok=True)
        layout.modprobe.write_text(
            "# Written by mpsguard-kmod; `mpsguard-kmod dkms --remove` goes back to the stock module.\n"
            f"install nvidia-uvm /sbin/modprobe {NAME} $CMDLINE_OPTS\n"
            f"install nvidia_uvm /sbin/modprobe {NAME} $CMDLINE_OPTS\n",
            encoding="ascii",
        )
    except OSError as error:
        remove(layout)
        raise DkmsError(f"{error.filename}: {error.strerror}") from None
    except BaseException:
        remove(layout)
        raise
    return version


def remove(layout: Layout) -> list[str]:
    """Back to stock: every version of our package; returns those that were there."""
    removed = []
    layout.modprobe.unlink(missing_ok=True)
    for source in sorted(layout.sources.glob(f"{NAME}-*")):
        version = source.name.removeprefix(f"{NAME}-")
        try:
            _dkms(layout, "remove", "-m", NAME, "-v", version, "--all")
        except DkmsError as error:
            # Not added yet, or not any more: then only the sources are to go.
            if not re.search(r"no(t| module) (found|located|added)|does not exist|No such|not in the DKMS", str(error)):
                raise
        shutil.rmtree(source)
        removed.append(version)
    return removed


def _write_package(copy: Tree, version: str, headers: Headers) -> None:
    # In quotes, as DKMS would else add KERNELRELEASE to it, which the driver's Makefile takes for a call by Kbuild.
    make = "'make' -j$(nproc) modules NV_KERNEL_MODULES='nvidia nvidia-uvm' KERNEL_UNAME=${kernelver}"
    lines = [
        f'PACKAGE_NAME="{NAME}"',
        f'PACKAGE_VERSION="{version}"',
        'AUTOINSTALL="yes"',
        f'MAKE[0]="{make}{_where(headers)}"',
        'CLEAN="true"',
        'BUILT_MODULE_NAME[0]="nvidia-uvm"',
        f'DEST_MODULE_NAME[0]="{NAME}"',
        'DEST_MODULE_LOCATION[0]="/updates/dkms"',
    ]
    if not (copy.root / "nvidia" / "nv-kernel.o_binary").exists():
        raise TreeError(
            f"{copy.root}: has no nvidia/nv-kernel.o_binary; DKMS needs an installed driver's tree, as in /usr/src"
        )
    (copy.root / "dkms.conf").write_text("\n".join([*lines, ""]), encoding="ascii")


def _where(headers: Headers) -> str:
    """Headers that are not in the usual place are named; DKMS knows the others."""
    if str(headers.build).startswith(("/usr/src/", "/lib/modules/", "/usr/lib/modules/")):
        return ""
    return f" SYSSRC={headers.source} SYSOUT={headers.build}"


def _dkms(layout: Layout, action: str, *arguments: str) -> None:
    try:
        run(["dkms", action, *arguments, *layout.options()], deadline_s=DKMS_DEADLINE_S, failure=DkmsError)
    except DkmsError as error:
        # dkms names no reason; its log has one, and is about to be taken away.
        reasons = [
            reason
            for log in layout.state.glob(f"{NAME}/*/build/make.log")
            if (reason := told(log.read_text(encoding="utf-8", errors="replace")))
        ]
        raise DkmsError(": ".join([str(error), *reasons])) from None
