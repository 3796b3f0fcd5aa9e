"""The last resort at the end of a run: daemons that belong to this run's private directory and still live.

A daemon that daemonised itself is nobody's child. What proves that it is ours is its environment: it names a pipe
directory (or, for the guard, a readiness socket) in a directory that this run made for itself.
"""

import signal
from pathlib import Path
from typing import Final

from gpu_suite.core.ending import end
from mpsguard.linux import procfs
from mpsguard.linux.process import ProcessHandle

_PROOFS: Final = ("CUDA_MPS_PIPE_DIRECTORY", "NOTIFY_SOCKET")


def find(root: Path) -> list[ProcessHandle]:
    """Handles on the processes that were started for something under `root`; they belong to the caller."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            handle = ProcessHandle.open(int(entry.name))
        except OSError:
            continue
        environment = procfs.environment(handle.key.pid)
        if any(Path(environment.get(name, "/")).is_relative_to(root) for name in _PROOFS):
            found.append(handle)
        else:
            handle.close()
    return found


def end_all(root: Path) -> list[str]:
    """End what is left under `root`; the command lines of what was found."""
    commands = []
    for handle in find(root):
        with handle:
            commands.append(f"{handle.key.pid} {procfs.command(handle.key.pid)}")
            end(handle, signal.SIGTERM, grace=3.0)
    return commands
