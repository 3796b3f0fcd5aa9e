"""What the kernel says of this process's mappings of a memfd (proc_pid_smaps(5))."""

from pathlib import Path


def smaps(memfd: str, key: str) -> list[list[str]]:
    """The words behind a key, for each of our mappings of the memfd with that name."""
    ours, found = False, []
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if not line.split()[0].endswith(":"):
            ours = f"/memfd:{memfd}" in line
        elif ours and line.startswith(f"{key}:"):
            found.append(line.split()[1:])
    return found
