"""`zone_overrun.cu` for a program that makes its own zones, by `mpsguard.preload.zones`.

    zone_api.py --kind tripwire|sparse [--bytes N] [--past N | --before N] [--access write|read|atomic] [--controlled]

Options, events and exit statuses are those of `zone_overrun.cu`; `allocated` says the kind of the zones besides, and
`read` (of a sparse zone: 0) what a read brought.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import sys
import time
from typing import Any

from mpsguard.preload import zones

cuda: Any = importlib.import_module("cuda.bindings.driver")

DIED, FAILED = 3, 4
_ACCESSES = ("write", "read", "atomic")
_PTX = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry access(.param .u64 where, .param .u64 result, .param .u32 how)
{
    .reg .u64 %address, %found;
    .reg .u32 %how, %value;
    .reg .pred %is;
    ld.param.u64 %address, [where];
    ld.param.u64 %found, [result];
    ld.param.u32 %how, [how];
    setp.eq.u32 %is, %how, 0;
    @%is bra WRITE;
    setp.eq.u32 %is, %how, 1;
    @%is bra READ;
    atom.global.add.u32 %value, [%address], 1;
    bra DONE;
READ:
    ld.volatile.global.u32 %value, [%address];
    bra DONE;
WRITE:
    mov.u32 %value, 42;
    st.volatile.global.u32 [%address], %value;
DONE:
    st.volatile.global.u32 [%found], %value;
    membar.sys;
    ret;
}
\0"""


def emit(event: str, **members: object) -> None:
    """Print one event at once."""
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()


class CallError(Exception):
    """A call of the driver failed."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call}: {code}")
        self.call, self.code = call, code


def call(name: str, *arguments: Any) -> Any:
    """A driver call's result; CallError if it fails."""
    code, *values = getattr(cuda, name)(*arguments)
    if int(code):
        raise CallError(name, int(code))
    return values[0] if values else None


def access(function: Any, address: int, how: str) -> int:
    """Launch the kernel that accesses it, and wait; what it found there."""
    result = call("cuMemAlloc", 4)
    values = (address, int(result), _ACCESSES.index(how))
    kinds = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
    emit("injected", address=address)
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, 0, (values, kinds), 0)
    call("cuCtxSynchronize")
    found = bytearray(4)
    call("cuMemcpyDtoH", found, result, 4)
    return int.from_bytes(found, "little")


def run(options: argparse.Namespace) -> int:
    """The whole program, with a context; the exit status."""
    function = call("cuModuleGetFunction", call("cuModuleLoadData", _PTX), b"access")
    kind = zones.ZoneKind(options.kind)
    with zones.ZoneSpace(zones.ZoneSettings(kinds=(kind,))) as space, space.allocate(options.bytes) as region:
        call("cuMemsetD8", region.address, 0x5A, region.size)
        call("cuCtxSynchronize")
        emit("allocated", address=region.address, bytes=region.size, kind=region.kind, armed=space.armed)
        if options.controlled and not sys.stdin.readline():
            return 0
        wanted = region.address - options.before if options.before else region.address + region.size + options.past
        try:
            found = access(function, wanted & ~3, options.access)
        except CallError as error:
            emit("error", code=error.code, name=error.call)
            sys.stdout.flush()
            os._exit(DIED)  # the context is dead: giving anything back may never return
        emit("error", code=0, name="cudaSuccess", read=found)
        contents = bytearray(region.size)
        call("cuMemcpyDtoH", contents, region.address, region.size)
        emit("intact", value=contents == b"\x5a" * region.size)
    emit("finished")
    return 0


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kind", choices=("tripwire", "sparse"), default="tripwire")
    parser.add_argument("--bytes", type=int, default=4 << 20)
    parser.add_argument("--past", type=int, default=0)
    parser.add_argument("--before", type=int, default=0)
    parser.add_argument("--access", choices=_ACCESSES, default="write")
    parser.add_argument("--controlled", action="store_true")
    options = parser.parse_args()
    emit("start")
    try:
        call("cuInit", 0)
        call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", 0)))
        return run(options)
    except CallError as error:
        emit("failed", code=error.code, name="?", call=error.call)
    except zones.ZoneError as error:
        emit("failed", code=-1, name=str(error), call="mpsguard.preload.zones")
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
