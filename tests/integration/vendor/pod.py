"""A pod's container, SIMULATED: this machine's files, copied on write, in a mount namespace of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import PATIENCE
from tests.integration.vendor.site import Site

_ROOT: Final = """
set -e
mount -t tmpfs pod {scratch}
mkdir {scratch}/upper {scratch}/work {root}
mount -t overlay -o lowerdir=/,upperdir={scratch}/upper,workdir={scratch}/work pod {root}
mount --rbind /dev {root}/dev
mount {proc} {root}/proc
bound() {{ mkdir -p "{root}$2"; mount --rbind "$1" "{root}$2"; }}
"""


class Pod:
    """Owns a container's processes.

    Args:
        site: Where its programs are; first on PATH inside.
        scratch: An empty directory.
        mounts: Directories of the machine by their path inside.
        script: A shell script, outside of the container's root, which is ``$root``.
        variables: The container's environment.
        host_pid: Whether it shares the machine's pid namespace.
    """

    def __init__(
        self,
        site: Site,
        scratch: Path,
        mounts: Mapping[str, Path],
        script: str,
        variables: Mapping[str, str],
        *,
        host_pid: bool,
    ) -> None:
        scratch.mkdir()
        root = scratch / "root"
        proc = "--rbind /proc" if host_pid else "-t proc proc"
        # What lies on other file systems than / is not in the copy.
        machine = os.stat("/").st_dev
        kept = (REPOSITORY, Path(sys.base_prefix), site.root, site.vendor.resolve().parents[2])
        binds = [f"bound '{path}' '{path}'" for path in kept if path.stat().st_dev != machine]
        binds += [f"bound '{outside}' '{inside}'" for inside, outside in mounts.items()]
        text = "\n".join([_ROOT.format(scratch=scratch, root=root, proc=proc), *binds, f"root={root}", script])
        namespaces = ["--mount", "--propagation", "private"] + ([] if host_pid else ["--pid", "--fork", "--kill-child"])
        self._host_pid = host_pid
        self.process = subprocess.Popen(
            ["unshare", *namespaces, "sh", "-c", text],
            env={"PATH": site.environment["PATH"], "LANG": "C.UTF-8", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def runs(self) -> bool:
        """Whether its first process has not ended."""
        return self.process.poll() is None

    def output(self) -> str:
        """What it has said, once it has ended."""
        return self.process.communicate(timeout=PATIENCE)[0]

    def kill(self) -> None:
        """Kill all its processes, as the end of a container kills those of its control group."""
        if self._host_pid and self.runs():
            namespace = os.readlink(f"/proc/{self.process.pid}/ns/mnt")
            assert namespace != os.readlink("/proc/self/ns/mnt")
            for entry in Path("/proc").iterdir():
                with suppress(OSError):
                    if entry.name.isdigit() and os.readlink(entry / "ns/mnt") == namespace:
                        os.kill(int(entry.name), signal.SIGKILL)
        self.process.kill()
        self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
