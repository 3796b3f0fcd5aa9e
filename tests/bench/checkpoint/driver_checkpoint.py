"""Ask the driver to lock another process for its own checkpoint: `python -m ... PID`; prints what it answers.

Prints the number and the name of the answer to cuCheckpointProcessLock. If it is granted, it is taken back at once.
"""

import ctypes
import sys

_LOCK_BYTES = 64
"""Of CUcheckpointLockArgs, which begins with the milliseconds to wait, and of CUcheckpointUnlockArgs."""
_MILLISECONDS = 1000


def main() -> int:
    pid = int(sys.argv[1])
    driver = ctypes.CDLL("libcuda.so.1")
    if not hasattr(driver, "cuCheckpointProcessLock"):
        sys.stderr.write("the driver has no cuCheckpointProcessLock: it came with CUDA 12.8\n")
        return 1
    name = ctypes.c_char_p()
    if (refused := driver.cuInit(0)) != 0:
        sys.stderr.write(f"cuInit: error {refused}\n")
        return 1
    arguments = ctypes.create_string_buffer(_LOCK_BYTES)
    ctypes.c_uint.from_buffer(arguments).value = _MILLISECONDS
    result = driver.cuCheckpointProcessLock(pid, arguments)
    driver.cuGetErrorName(result, ctypes.byref(name))
    if result == 0:
        driver.cuCheckpointProcessUnlock(pid, ctypes.create_string_buffer(_LOCK_BYTES))
    sys.stdout.write(f"{result} {(name.value or b'unknown').decode()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
