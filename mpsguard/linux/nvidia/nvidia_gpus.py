"""The GPUs of this machine as the kernel driver lists them: PCI address and UUID, without any library of the driver."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path("/proc/driver/nvidia/gpus")
_NODE: Final = re.compile(r"nvidia(?:\d+|ctl|-uvm)")
_UUID: Final = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]{1,40})\s*$", re.MULTILINE)


def addresses(root: Path = ROOT) -> list[str]:
    """PCI addresses with their function (``0000:18:00.0``), of GPUs that are lost too; empty without a driver."""
    try:
        return [entry.name for entry in root.iterdir()]
    except OSError:
        return []


def pci_addresses(root: Path = ROOT) -> dict[str, str]:
    """UUID to PCI address without its function (``0000:18:00``, as the kernel log has it); empty without a driver."""
    found: dict[str, str] = {}
    for address in addresses(root):
        try:
            match = _UUID.search((root / address / "information").read_text(errors="replace"))
        except OSError:
            continue
        if match is not None:
            found[match[1]] = address.partition(".")[0].lower()
    return found


def open_to(uid: int, gid: int, devices: Path = Path("/dev")) -> bool:
    """Return whether a process of this user and group may open each device node that CUDA needs and that there is."""
    for node in devices.glob("nvidia*"):
        if not _NODE.fullmatch(node.name):
            continue
        try:
            status = node.stat()
        except OSError:
            continue
        shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
        if (status.st_mode >> shift) & 0o6 != 0o6:
            return uid == 0
    return True
