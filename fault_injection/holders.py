"""The holder processes of a vault, which keep its memory while no guard runs: found from outside, to test them."""

import os
from pathlib import Path


def holders(run_directory: Path) -> list[int]:
    """Return the pids of the holders of the vault with this run directory."""
    wanted = os.fsencode(run_directory / "holder" / "holder.sock")
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if wanted in arguments and b"mpsguard.vault.server.fd_storage.holder_process" in arguments:
                found.append(int(entry.name))
    return found
