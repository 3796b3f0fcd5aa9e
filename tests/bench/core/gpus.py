"""Which GPUs this machine has."""

import subprocess
from pathlib import Path


def uuids() -> list[str]:
    """Return the UUIDs of this machine's GPUs."""
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.split()


def minors() -> dict[str, int]:
    """Return the number of each GPU's node (/dev/nvidiaN) by UUID; the driver's own account."""
    found = {}
    for path in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        told = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        found[told["GPU UUID"].strip()] = int(told["Device Minor"])
    return found
