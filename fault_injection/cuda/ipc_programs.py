"""Two programs that share GPU memory by the legacy handles: `ipc_programs.py export|import MEETING`.

They speak to the driver alone, by its C interface, and meet at the files that begin with MEETING. Events: `start`,
`result` (digest of the memory as the program sees it at the end; `refused`, the driver's answer to an importer that got
none), `finished`. Exit status: 0 finished, 2 usage, 4 failed. It imports nothing of this project.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import time
from pathlib import Path

FAILED = 4
DEADLINE = 30.0
"""Seconds for the other one."""
SIZES = (4 << 20, 3 * (2 << 20) + 512, 700)
"""Of their own blocks, and of one that lies among others."""


class Handle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


def emit(event: str, **members: object) -> None:
    """Print one event at once."""
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()


class CudaError(Exception):
    """A call failed; its arguments are the call and the code."""


class Driver:
    """The driver's functions; CudaError where one fails."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function by its exported name."""
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(name, code)

    def allocate(self, size: int, content: bytes) -> ctypes.c_uint64:
        """Memory with that content."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self.write(address, content)
        return address

    def write(self, address: ctypes.c_uint64, content: bytes) -> None:
        """Copy to the GPU."""
        self.call("cuMemcpyHtoD_v2", address, content, ctypes.c_size_t(len(content)))

    def read(self, address: ctypes.c_uint64, size: int) -> bytes:
        """Copy from the GPU."""
        found = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", found, address, ctypes.c_size_t(size))
        return found.raw


def content(index: int, size: int) -> bytes:
    """What stands in memory, told by its index."""
    return hashlib.shake_128(str(index).encode()).digest(size)


def put(path: Path, data: bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.rename(path)


def take(path: Path) -> bytes:
    """Wait for a file of the other program."""
    due = time.monotonic() + DEADLINE
    while not path.exists():
        if time.monotonic() > due:
            raise CudaError(f"{path.name} did not come", -1)
        time.sleep(0.01)
    return path.read_bytes()


def export(driver: Driver, meeting: Path) -> dict[str, object]:
    """Give handles, and look at what the importer has written."""
    memory, handles = [], b""
    for index, size in enumerate(SIZES):
        memory.append(driver.allocate(size, content(index, size)))
        handle = Handle()
        driver.call("cuIpcGetMemHandle", ctypes.byref(handle), memory[-1])
        handles += bytes(handle)
    put(meeting.with_name(meeting.name + ".handles"), handles)
    take(meeting.with_name(meeting.name + ".written"))
    found = [driver.read(address, size) for address, size in zip(memory, SIZES, strict=True)]
    put(meeting.with_name(meeting.name + ".over"), b"")
    return {"digest": hashlib.sha256(b"".join(found)).hexdigest()}


def import_(driver: Driver, meeting: Path) -> dict[str, object]:
    """Open the handles twice, check and change what is there, close them."""
    handles = take(meeting.with_name(meeting.name + ".handles"))
    found = []
    began = time.monotonic()
    try:
        for index, size in enumerate(SIZES):
            handle = Handle.from_buffer_copy(handles, 64 * index)
            address, again = ctypes.c_uint64(), ctypes.c_uint64()
            driver.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, 1)
            driver.call("cuIpcOpenMemHandle_v2", ctypes.byref(again), handle, 1)
            right = address.value == again.value and driver.read(address, size) == content(index, size)
            driver.write(address, content(100 + index, size) if right else bytes(size))
            found.append(driver.read(address, size))
            driver.call("cuIpcCloseMemHandle", again)
            driver.call("cuIpcCloseMemHandle", address)
    except CudaError as error:
        if error.args[0] != "cuIpcOpenMemHandle_v2":
            raise
        return {"digest": "", "refused": error.args[1], "seconds": time.monotonic() - began}
    finally:
        put(meeting.with_name(meeting.name + ".written"), b"")
    take(meeting.with_name(meeting.name + ".over"))
    return {"digest": hashlib.sha256(b"".join(found)).hexdigest()}


def main() -> int:
    """Be one of the two."""
    programs = {"export": export, "import": import_}
    if len(sys.argv) != 3 or sys.argv[1] not in programs:
        return 2
    emit("start")
    try:
        found = programs[sys.argv[1]](Driver(), Path(sys.argv[2]))
    except CudaError as error:
        emit("failed", code=error.args[1], name=str(error.args[1]), call=error.args[0])
        return FAILED
    emit("result", **found)
    emit("finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
