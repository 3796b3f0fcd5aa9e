"""The sentinel: an idle CUDA process on a lane. Its GPU core dump tells where an SM stopped, in any client's kernel.

It is a separate program, because the guard does not use CUDA: ``python sentinel.py``, with the standard library alone.
The guard sets its environment: the lane's pipe directory, and the driver's own variables for GPU core dumps. It creates
a context on every visible GPU, prints ``ready``, and then waits. When an SM of the GPU faults, the driver writes the
dump in a thread of this process. The sentinel ends at the end of its standard input, and so also when the guard dies.
"""

import ctypes
import os
import resource
import sys
from typing import Final, NoReturn

LARGEST_CORE: Final = 64 << 20
"""Most bytes of a dump; that of an idle process without its memory has 0.25 MB (H200, 580.159.04)."""


def main() -> NoReturn:
    """Exit with status 0 at the end of standard input, or with 1 and one line if CUDA cannot be used."""
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
    # Skip CUDA's own clean-up: after a fault its calls may never return.
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
