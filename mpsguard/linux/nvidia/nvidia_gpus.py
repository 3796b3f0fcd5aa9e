"""The GPUs of this machine as the kernel driver lists them: PCI address and UUID, without any library of the driver."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path("/proc/driver/nvidia/gpus")
_UUID: Final = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]{1,40})\s*$", re.MULTILINE)


def pci_addresses(root: Path = ROOT) -> dict[str, str]:
    """UUID to PCI address without its function (``0000:18:00``, as the kernel log has it); empty without a driver."""
    found: dict[str, str] = {}
    try:
        entries = list(root.iterdir())
    except OSError:
        return found
    for entry in entries:
        try:
            match = _UUID.search((entry / "information").read_text())
        except OSError:
            continue
        if match is not None:
            found[match[1]] = entry.name.partition(".")[0].lower()
    return found
