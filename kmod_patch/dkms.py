"""A DKMS package of the patched nvidia-uvm, beside the driver's own, and the way back.

The module's file is called mpsguard-nvidia-uvm.ko: it lies beside the stock one and replaces nothing. That
`modprobe nvidia-uvm` takes it is one line in modprobe.d (`kmod_patch/modprobe.py`); without that line, or where our
module is not there, the stock one is loaded as ever.

An installation that fails leaves the machine as it was. An older version of ours goes when the newer one is in its
place, and is put back if that does not come about.

DKMS strips what it has built and signs it with its own key (`mok_signing_key` in /etc/dkms/framework.conf), after all
that a package can have done: a signature of ours would be lost or covered by that one.
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from kmod_patch import VERSION, modprobe, state
from kmod_patch.build import copy_tree
from kmod_patch.errors import KmodError, ToolError, TreeError
from kmod_patch.kernel import Headers
from kmod_patch.patch import make_plan
from kmod_patch.program import run, told
from kmod_patch.tree import Tree

NAME: Final = "mpsguard-nvidia-uvm"
DKMS_DEADLINE_S: Final = 1800.0
DEPMOD_DEADLINE_S: Final = 300.0
_STATUS: Final = re.compile(
    rf"^{NAME}(?:/|, )(?P<version>[^,:\s]+)(?:, (?P<kernel>[^,:\s]+), [^,:\s]+)?: (?P<state>\w+)(?P<rest>.*)$",
    re.MULTILINE,
)
"""A line of `dkms status`: "NAME/VERSION, KERNEL, ARCHITECTURE: installed", or before version 3 "NAME, VERSION, ...".

What is behind it is a warning, that files are missing or are not those that were built.
"""


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

    @property
    def is_image(self) -> bool:
        """Whether it is not this machine's own."""
        return self.root != Path("/")

    def source_of(self, version: str) -> Path:
        """Sources of a version of the package."""
        return self.sources / f"{NAME}-{version}"

    def options(self) -> list[str]:
        """For dkms."""
        if not self.is_image:
            return []
        return [
            *("--dkmstree", str(self.state)),
            *("--sourcetree", str(self.sources)),
            *("--installtree", str(self.root / "lib" / "modules")),
            # It would be run for the machine's own /lib/modules.
            "--no-depmod",
        ]


class Package(msgspec.Struct, frozen=True):
    """A version of our package, as DKMS knows it."""

    version: str
    kernel: str | None
    """None: it is added, and built for no kernel."""
    state: str
    """added, built or installed; broken if DKMS says that its files are not what they should be."""


def package_version(driver: str) -> str:
    """The driver's version with a suffix of our own."""
    return f"{driver}+mpsguard{VERSION}"


def packages(layout: Layout) -> list[Package]:
    """Every version of ours, once for each kernel that it is built for; raises DkmsError or ToolError."""
    output = run(["dkms", "status", "-m", NAME, *layout.options()], deadline_s=DKMS_DEADLINE_S, failure=DkmsError)
    return [
        Package(found["version"], found["kernel"], "broken" if "WARNING" in found["rest"] else found["state"])
        for found in _STATUS.finditer(output)
    ]


def install(tree: Tree, headers: Headers, layout: Layout) -> str:
    """Add, build and install the package for one kernel; return its version. If it fails, all of it is taken back.

    A version that is there already is built for this kernel, too; older ones of this kernel go.

    Raises:
        KmodError: With an addition if what it had changed cannot be taken back.
    """
    if shutil.which("dkms") is None:
        raise ToolError("dkms is not installed (Debian: dkms)")
    version = package_version(tree.version)
    before = packages(layout)
    mine = [package for package in before if package.version == version]
    if not any(package.state == "installed" for package in mine):
        # What a run that was cut short has left.
        _forget(layout, version, before)
        mine = []
    stock = modprobe.stock_command(NAME, layout.root)
    line = _text(layout.modprobe)
    try:
        if not mine:
            _add(tree, headers, layout, version)
        if Package(version, headers.release, "installed") not in mine:
            _build_and_install(layout, version, headers)
        _write(layout.modprobe, modprobe.line(NAME, stock))
        modprobe.require_first(NAME, layout.root)
    except BaseException as error:
        left = _take_back(layout, version, headers.release, before, line, added=not mine)
        if not isinstance(error, KmodError | OSError):
            raise
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        if left:
            raise DkmsError("; ".join([reason, *(f"taking it back failed: {each}" for each in left)])) from None
        if isinstance(error, OSError):
            raise DkmsError(reason) from None
        raise
    _retire(layout, version, headers.release, before)
    return version


def remove(layout: Layout) -> list[str]:
    """Back to stock: every version of our package; returns those that were there."""
    layout.modprobe.unlink(missing_ok=True)
    known = packages(layout) if shutil.which("dkms") else []
    sources = [source.name.removeprefix(f"{NAME}-") for source in layout.sources.glob(f"{NAME}-*")]
    versions = sorted({*sources, *(package.version for package in known)})
    for version in versions:
        _forget(layout, version, known)
    for release in sorted({package.kernel for package in known if package.kernel}):
        _depmod(layout, release)
    return versions


def _add(tree: Tree, headers: Headers, layout: Layout, version: str) -> None:
    condition, _ = state.condition(tree)
    copy = copy_tree(tree, layout.source_of(version))
    if condition == "stock":
        state.apply(make_plan(copy))
    _write_package(copy, version, headers)
    _dkms(layout, "add", "-m", NAME, "-v", version)


def _build_and_install(layout: Layout, version: str, headers: Headers) -> None:
    # DKMS takes the driver's version for the module's: without --force it keeps an older change of the same driver, and
    # a module of a newer driver.
    for action, force in (("build", []), ("install", ["--force"])):
        where = ["-k", headers.release, "--kernelsourcedir", str(headers.build)]
        _dkms(layout, action, "-m", NAME, "-v", version, *where, *force)
    _depmod(layout, headers.release)


def _take_back(
    layout: Layout, version: str, release: str, before: list[Package], line: str | None, *, added: bool
) -> list[str]:
    """Everything as it was before a failed installation; returns what did not succeed."""

    def put_line_back() -> None:
        if line is None:
            layout.modprobe.unlink(missing_ok=True)
        else:
            _write(layout.modprobe, line)

    def drop() -> None:
        now = packages(layout)
        if added:
            _forget(layout, version, now)
        elif any(package.version == version and package.kernel == release for package in now):
            _dkms(layout, "remove", "-m", NAME, "-v", version, "-k", release)

    def put_older_back() -> None:
        now = packages(layout)
        for package in before:
            if package.kernel == release and package.state == "installed" and package not in now:
                _dkms(layout, "install", "-m", NAME, "-v", package.version, "-k", release, "--force")
        _depmod(layout, release)

    left = []
    steps: list[Callable[[], None]] = [put_line_back, drop, put_older_back]
    for step in steps:
        try:
            step()
        except (KmodError, OSError) as error:
            left.append(str(error))
    return left


def _retire(layout: Layout, version: str, release: str, before: list[Package]) -> None:
    """Older versions go from a kernel that has a newer one; for other kernels they stay."""
    older = {package.version for package in before if package.kernel in {release, None}} - {version}
    for each in sorted(older):
        if any(package.version == each and package.kernel not in {release, None} for package in before):
            _dkms(layout, "remove", "-m", NAME, "-v", each, "-k", release)
        else:
            _forget(layout, each, before)


def _forget(layout: Layout, version: str, known: list[Package]) -> None:
    """A version with its sources, in whatever state it is; ``known`` is what DKMS has."""
    if any(package.version == version for package in known):
        _dkms(layout, "remove", "-m", NAME, "-v", version, "--all")
    shutil.rmtree(layout.state / NAME / version, ignore_errors=True)
    source = layout.source_of(version)
    if source.exists():
        shutil.rmtree(source)


def _write_package(copy: Tree, version: str, headers: Headers) -> None:
    # In quotes, as DKMS would else add KERNELRELEASE to it, which the driver's Makefile takes for a call by Kbuild.
    make = "'make' -j$(nproc) modules NV_KERNEL_MODULES='nvidia nvidia-uvm' KERNEL_UNAME=${kernelver}"
    lines = [
        f'PACKAGE_NAME="{NAME}"',
        f'PACKAGE_VERSION="{version}"',
        'AUTOINSTALL="yes"',
        *_where(headers),
        f'MAKE[0]="{make} $where"',
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


def _where(headers: Headers) -> list[str]:
    """Headers that are not in the usual place are named, for their own kernel; DKMS knows the others."""
    if str(headers.build).startswith(("/usr/src/", "/lib/modules/", "/usr/lib/modules/")):
        return ['where=""']
    paths = f"SYSSRC={headers.source} SYSOUT={headers.build}"
    return [f'case "$kernelver" in {headers.release}) where="{paths}" ;; *) where="" ;; esac']


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _write(path: Path, text: str) -> None:
    """All or nothing: modprobe reads it whenever a program starts CUDA."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)  # noqa: PTH105 - the name says that it replaces


def _depmod(layout: Layout, release: str) -> None:
    """Of an image; on this machine DKMS does it."""
    if layout.is_image and (layout.root / "lib" / "modules" / release).is_dir():
        run(["depmod", "-b", str(layout.root), release], deadline_s=DEPMOD_DEADLINE_S, failure=DkmsError)


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
