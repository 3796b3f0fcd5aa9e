"""The last resort at the end of a run: daemons that belong to this run's private directory and still live.

A daemon that daemonised itself has no parent here. What proves that it is ours is its environment: it names a pipe
directory (or, for the guard, a readiness socket) in a directory that this run made for itself. The vault's holder is
rid of the guard's environment: its proof is the socket that its command line names.
"""

import signal
from pathlib import Path
from typing import Final

from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.process import ProcessHandle
from tests.harness.ending import end

_PROOFS: Final = ("CUDA_MPS_PIPE_DIRECTORY", "NOTIFY_SOCKET")
_HOLDER: Final = "mpsguard.vault.server.fd_storage.holder_process"


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
        if _is_ours(handle.key.pid, root):
            found.append(handle)
        else:
            handle.close()
    return found


def _is_ours(pid: int, root: Path) -> bool:
    environment = procfs.environment(pid)
    if any(Path(environment.get(name, "/")).is_relative_to(root) for name in _PROOFS):
        return True
    words = procfs.command(pid).split()
    return _HOLDER in words and Path(words[-1]).is_relative_to(root)


def end_all(root: Path) -> list[str]:
    """End what is left under `root`; the command lines of what was found."""
    commands = []
    for handle in find(root):
        with handle:
            commands.append(f"{handle.key.pid} {procfs.command(handle.key.pid)}")
            end(handle, signal.SIGTERM, grace=3.0)
    return commands
