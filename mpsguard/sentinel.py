"""The sentinel: an idle CUDA process on a lane, whose GPU core dump tells where an SM stopped, whosever kernel it was.

A program of its own (the guard has no CUDA): ``python sentinel.py``, standard library alone. The guard sets its
environment: the lane's pipe directory, and the driver's own variables for GPU core dumps. It makes a context on every
GPU that it sees, says ``ready``, and does nothing from then on. The driver writes the dump in a thread of its own when
an SM of the GPU faults. It ends when its standard input does, and so also when the guard dies.
"""

import ctypes
import os
import resource
import sys
from typing import Final, NoReturn

LARGEST_CORE: Final = 64 << 20
"""Bytes that it can write at most; a dump of an idle process without its memory has 0.25 MB (H200, 580.159.04)."""


def main() -> NoReturn:
    """Exit status 0 at the end of standard input, 1 with one line if CUDA cannot be used."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_CORE, LARGEST_CORE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        _fail(str(error))
    _check("cuInit", cuda.cuInit(0))
    count = ctypes.c_int()
    _check("cuDeviceGetCount", cuda.cuDeviceGetCount(ctypes.byref(count)))
    for ordinal in range(count.value):
        device, context = ctypes.c_int(), ctypes.c_void_p()
        _check("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), ordinal))
        _check("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while os.read(sys.stdin.fileno(), 4096):
        pass
    # Not through CUDA's own clean-up: after a fault its calls may never return.
    os._exit(0)


def _check(call: str, result: int) -> None:
    if result:
        _fail(f"{call} failed with error {result}")


def _fail(reason: str) -> NoReturn:
    sys.stdout.write(f"{reason}\n")
    sys.stdout.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
