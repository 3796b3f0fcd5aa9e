"""Which limit of memory a client has: from its server's and its own environment, as measured.

On an H100 with driver 580.159.04, the server's limit being 10G: without the variable 9 GiB could be allocated, with
`0=20G` 9, with `0=2G` 1, and with `0=2G,1=4G`, `1=4G` or `x=y` all that was tried, 40 GiB.
"""

import re
from pathlib import Path
from typing import Final

VARIABLE: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_ONE_ENTRY: Final = re.compile(r"0=([0-9]+)([GM])")


def of_client(of_server: int | None, variable: str | None) -> int | None:
    """Return the bytes that a client may have; None: any."""
    if variable is None:
        return of_server
    match = _ONE_ENTRY.fullmatch(variable)
    if match is None:
        return None
    own = int(match[1]) << (30 if match[2] == "G" else 20)
    return own if of_server is None else min(own, of_server)


def variable_of(pid: int) -> str | None:
    """Return the variable in the environment that a process was started with; None without it."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(bytes(1))
    except OSError:
        return None
    values = [
        entry.partition(b"=")[2].decode(errors="replace")
        for entry in entries
        if entry.startswith(f"{VARIABLE}=".encode())
    ]
    return values[0] if values else None
