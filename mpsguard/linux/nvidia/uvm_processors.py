"""Which GPU a processor number of the UVM driver is: asked of an address space, and found in /proc.

The numbers are the driver's own and good in the address space that has the GPU registered (``uvm_processors.h``);
`uvm_events` says how the two layouts count them. UVM_TOOLS_GET_PROCESSOR_UUID_TABLE (64) is a request
to the address space's file, not to the tools device (``uvm_linux.h`` and ``uvm_ioctl.h`` of the open kernel modules,
github.com/NVIDIA/open-gpu-kernel-modules). Compared over the releases 535.54 to 595.45, its answers are different, but
all can give a table of 33 UUIDs of whole GPUs, so that MIG instances need no care:

* 535: eight bytes for the table's address, then a number of entries, which is written, then the status;
* 550, 555: the same, but 0 entries asks for this table, and the version of the table is written behind the status;
* 560: the version, which must be asked for, in the place of the number;
* from 565.57 on, with the second layout: the status in that place, and nothing behind it.
"""

import ctypes
import struct
from pathlib import Path
from typing import Final
from uuid import UUID

from mpsguard.linux.nvidia.uvm_events import V2, EventLayout
from mpsguard.linux.nvidia.uvm_tools import NotAVaSpaceError, ToolsDriver, UvmStatusError

REQUEST: Final = 64
_NAME: Final = "GET_PROCESSOR_UUID_TABLE"
_PARAMETERS: Final = struct.Struct("=QIIII")
"""Eight bytes longer than most releases have it: 550 writes its version there."""
_ENTRIES: Final = 33
"""UVM_MAX_PROCESSORS_V1: the CPU, and 32 GPUs."""
_UUID_BYTES: Final = 16
_INVALID_ARGUMENT: Final = 0x1F
_ILLEGAL_ACTION: Final = 0x16

PROC_GPUS: Final = Path("/proc/driver/nvidia/gpus")


def whole_gpu(processor: int, layout: EventLayout) -> int:
    """The number in the table of the GPU that an event's processor is of; 0 is the CPU."""
    return (processor + layout.instances - 1) // layout.instances


def gpu_uuids(driver: ToolsDriver, file: int, layout: EventLayout) -> dict[int, str]:
    """The GPUs that are registered in the address space behind ``file`` now, by their number; as ``GPU-…``.

    NotAVaSpaceError, UvmStatusError or OSError if the driver refuses.
    """
    table = ctypes.create_string_buffer(_ENTRIES * _UUID_BYTES)
    first, second = _asked(driver, file, table, 0)
    if layout is V2:
        status = first
    else:
        status = second
        if status == _INVALID_ARGUMENT:
            status = _asked(driver, file, table, 1)[1]
    if status == _ILLEGAL_ACTION:
        raise NotAVaSpaceError(_NAME, status)
    if status != 0:
        raise UvmStatusError(_NAME, status)
    entries = [table.raw[at : at + _UUID_BYTES] for at in range(0, _ENTRIES * _UUID_BYTES, _UUID_BYTES)]
    return {number: f"GPU-{UUID(bytes=raw)}" for number, raw in enumerate(entries) if number and any(raw)}


def _asked(driver: ToolsDriver, file: int, table: ctypes.Array[ctypes.c_char], word: int) -> tuple[int, int]:
    parameters = bytearray(_PARAMETERS.pack(ctypes.addressof(table), word, 0, 0, 0))
    driver.call(file, REQUEST, parameters)
    _, first, second, *_ = _PARAMETERS.unpack(parameters)
    return first, second


class GpuAddresses:
    """Where the GPUs are, as the kernel log writes it (``0000:18:00``), by UUID."""

    def __init__(self, directory: Path = PROC_GPUS) -> None:
        self._directory = directory
        self._known: dict[str, str] = {}

    def of(self, uuid: str) -> str | None:
        """The PCI address of a GPU; None if the driver does not show it in /proc. Reads files for one not yet seen."""
        if uuid not in self._known:
            self._known = self._read()
        return self._known.get(uuid)

    def _read(self) -> dict[str, str]:
        """``nv-procfs.c``: each directory is named by domain, bus, slot and function."""
        found: dict[str, str] = {}
        try:
            for information in self._directory.glob("*/information"):
                lines = information.read_text(errors="replace").splitlines()
                fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                if "GPU UUID" in fields:
                    found[fields["GPU UUID"]] = information.parent.name.rpartition(".")[0]
        except OSError:
            return found
        return found
