"""A real systemd, booted as process 1 of a throw-away machine: this one's copy on write, in namespaces of its own.

Needs root, Linux with overlayfs and cgroup v2, util-linux and systemd's own package; no container engine and no image.
Everything the machine writes goes to a tmpfs that only its own mount namespace knows; it ends with process 1.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

T = TypeVar("T")

_SYSTEMD: Final = Path("/lib/systemd/systemd")
_BOOT: Final = Path(__file__).with_name("boot.sh")
_TOOLS: Final = ("unshare", "nsenter", "mount", "pivot_root", "systemctl", "journalctl")
_NAMESPACES: Final = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
# With process 1: in a control group outside of the machine, root would be a container's to its guard. There is no such
# group while systemd begins.
_JOIN: Final = '[ ! -e "$0" ] || echo $$ >"$0"; exec "$@"'
_INIT: Final = "/sys/fs/cgroup/init.scope/cgroup.procs"
_POLL: Final = 0.02
_SELDOM: Final = 0.2
_END_DEADLINE: Final = 20.0
_ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/root",
    "SYSTEMD_PAGER": "",
    "SYSTEMD_COLORS": "0",
}


class BootError(Exception):
    """The machine did not come up; the text has what is known about why."""


def missing() -> str | None:
    """Why no machine can be booted here (the text of a skip), None if one can."""
    if os.geteuid() != 0:
        return "booting a systemd needs root"
    if not _SYSTEMD.exists():
        return f"no {_SYSTEMD} on this machine"
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if lacking:
        return f"no {lacking[0]} on this machine"
    known = Path("/proc/filesystems").read_text(encoding="ascii").split()
    if "overlay" not in known:
        # The kernel may have it as a module that is not loaded yet.
        subprocess.run(["modprobe", "overlay"], capture_output=True, check=False, timeout=10)
        known = Path("/proc/filesystems").read_text(encoding="ascii").split()
    lacking = [name for name in ("overlay", "cgroup2") if name not in known]
    return f"the kernel has no {lacking[0]} file system" if lacking else None


def wait_for(predicate: Callable[[], T], deadline: float, what: str) -> T:
    """Ask until ``predicate`` says something true, and return that; AssertionError after ``deadline`` seconds.

    The longer it has been waited, the seldomer: to ask is to start processes, which take the processors away from what
    is waited for.
    """
    begun = time.monotonic()
    while True:
        answer = predicate()
        if answer:
            return answer
        waited = time.monotonic() - begun
        if waited >= deadline:
            raise AssertionError(f"not within {deadline:g} s: {what} (last answer: {answer!r})")
        time.sleep(max(_POLL, min(waited / 5, _SELDOM)))


class BootedSystemd:
    """A machine under a real systemd; a context manager that leaves nothing behind.

    ``visible`` are paths that must be seen inside, copy on write, though they may lie on other file systems than ``/``.
    """

    def __init__(self, visible: Sequence[Path] = (), *, root: Path = Path("/"), boot_deadline: float = 30.0) -> None:
        """``root``: a directory with another system to boot, copy on write, too."""
        self._root = root
        self._visible = elsewhere(visible) if root == Path("/") else sorted({path.resolve() for path in visible})
        self._boot_deadline = boot_deadline
        self._scratch = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._leader = 0

    def __enter__(self) -> Self:
        self._scratch = Path(tempfile.mkdtemp(prefix="mpsguard-systemd-"))
        try:
            self._boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def leader(self) -> int:
        """Process 1 of the machine, by the pid it has outside."""
        return self._leader

    def run(
        self, *command: str | Path, deadline: float = 30.0, check: bool = True, stdin: str = ""
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command inside, as root, outside of any unit; AssertionError if ``check`` and it fails."""
        done = subprocess.run(
            self._inside(*command),
            env=_ENVIRONMENT,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline,
            check=False,
        )
        if check and done.returncode:
            words = " ".join(map(str, command))
            raise AssertionError(f"{words}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def systemctl(
        self, *arguments: str, deadline: float = 60.0, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        """Run systemctl inside."""
        return self.run("systemctl", *arguments, deadline=deadline, check=check)

    def property(self, unit: str, name: str) -> str:
        """One property of a unit, as `systemctl show` has it."""
        return self.systemctl("show", f"--property={name}", "--value", unit).stdout.strip()

    def journal(self, unit: str) -> str:
        """Everything the unit and systemd have said about it, one message a line without its stamp."""
        # What a unit wrote is in the journal when journald has read it.
        self.run("journalctl", "--sync")
        return self.run("journalctl", f"--unit={unit}", "--output=cat", "--no-pager").stdout

    def write(self, path: str | Path, text: str) -> None:
        """Write a file inside, with the directories above it."""
        self.run("mkdir", "-p", Path(path).parent)
        self.run("tee", path, stdin=text)

    def copy_file_in(self, file: Path, path: Path) -> None:
        """Copy a file in, under another path, with the directories above it."""
        self.run("mkdir", "-p", path.parent)
        command = self._inside("tee", path)
        with file.open("rb") as source:
            subprocess.run(command, env=_ENVIRONMENT, stdin=source, stdout=subprocess.DEVNULL, check=True, timeout=60)

    def copy_in(self, tree: Path) -> None:
        """Unpack a tree over ``/`` as a package is unpacked; files that are there already stay as they are."""
        packed = subprocess.run(["tar", "-C", tree, "-c", "."], capture_output=True, check=True, timeout=60).stdout
        unpack = self._inside("tar", "-C", "/", "-x", "--skip-old-files", "--no-same-owner")
        subprocess.run(unpack, env=_ENVIRONMENT, input=packed, capture_output=True, check=True, timeout=60)

    def wait_for(self, predicate: Callable[[], T], deadline: float, what: str) -> T:
        """As the function of that name; its complaint comes with the end of the machine's journal."""
        try:
            return wait_for(predicate, deadline, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._journal_end()}") from None

    def close(self) -> None:
        """End every process of the machine, and with it its mounts; its cgroups and the scratch directory go too."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            status = self._process.wait(_END_DEADLINE)
            self._process = None
            # Only if it could not even begin is there something left; nothing is mounted there for us to see.
            shutil.rmtree(self._scratch, ignore_errors=True)
            assert status == 0, f"{self._scratch.name}: the machine did not end well"

    def _inside(self, *command: str | Path) -> list[str]:
        # Without --wd: it would be a directory of the host's. Entering the mount namespace leads to its root.
        return ["nsenter", f"--target={self._leader}", *_NAMESPACES, "--", "sh", "-c", _JOIN, _INIT, *map(str, command)]

    def _boot(self) -> None:
        script = [_BOOT, "watch", self._scratch, self._scratch.name, *self._visible]
        with (self._scratch / "said").open("wb") as said:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--propagation=private", "sh", *map(str, script)],
                env={**_ENVIRONMENT, "MACHINE_ROOT": str(self._root)},
                # Never written to: its end is the machine's, even if this process is killed.
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                # Nor may Ctrl-C end the process that clears up.
                start_new_session=True,
            )
        try:
            wait_for(self._booted, self._boot_deadline, "a running system")
        except AssertionError as error:
            raise BootError(f"{error}\n{self._said()}\n{self._journal_end() if self._leader else ''}") from None

    def _booted(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None or (self._scratch / "ended").exists():
            raise BootError(self._said())
        if not self._leader:
            with suppress(FileNotFoundError, ProcessLookupError):
                leader = (self._scratch / "leader").read_text(encoding="ascii").strip()
                # Until it is systemd, its root is still the host's: no command may enter it.
                if Path(f"/proc/{leader or 0}/comm").read_text(encoding="ascii") == "systemd\n":
                    self._leader = int(leader)
            return False
        state = self.systemctl("is-system-running", check=False).stdout.strip()
        if state == "degraded":
            raise BootError(self.systemctl("--failed", "--no-legend", "--plain").stdout)
        return state == "running"

    def _said(self) -> str:
        return (self._scratch / "said").read_text(encoding="utf-8", errors="replace")

    def _journal_end(self) -> str:
        done = self.run("journalctl", "--no-pager", "--output=short-monotonic", "--lines=60", check=False)
        return done.stdout + done.stderr


def elsewhere(paths: Sequence[Path]) -> list[Path]:
    """Those of ``paths`` that an overlay on ``/`` alone would not show, since they lie on other mounts."""
    table = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    mounts = {Path(line.split()[4]) for line in table} - {Path("/")}
    real = sorted({path.resolve() for path in paths})
    return [path for path in real if mounts & {path, *path.parents}]
