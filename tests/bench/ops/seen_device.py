"""A program that says which GPU its device 0 is: `seen_device.py HIDDEN...`, nodes that it must not have.

Run alone in a mount namespace of its own, as root; it gives up being root before it asks the driver, so that a node
over which an unreadable file is mounted is refused, as by a device cgroup (EACCES here, EPERM there).
"""

import ctypes
import json
import os
import subprocess
import sys

_NOBODY = 65534


def main(hidden: list[str]) -> int:
    """Print one line of JSON: `uuid` and `works`, or `error`."""
    for node in hidden:
        refused = f"/tmp/refused-{os.getpid()}-{os.path.basename(node)}"
        os.close(os.open(refused, os.O_CREAT | os.O_EXCL, 0))
        subprocess.run(["mount", "--bind", refused, node], check=True)
        os.unlink(refused)
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    try:
        told: dict[str, object] = {"uuid": _device_0(), "works": True}
    except OSError as error:
        told = {"error": str(error)}
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


def _device_0() -> str:
    """The UUID of device 0, in which memory was written and read."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        if code := getattr(cuda, name)(*arguments):
            raise OSError(f"{name}: {code}")

    context, memory, word = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint32()
    uuid = (ctypes.c_ubyte * 16)()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxPushCurrent_v2", context)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4096))
    call("cuMemsetD32_v2", memory, ctypes.c_uint32(0x1234), ctypes.c_size_t(1024))
    call("cuMemcpyDtoH_v2", ctypes.byref(word), memory, ctypes.c_size_t(4))
    if word.value != 0x1234:
        raise OSError(f"read {word.value:#x}")
    call("cuDeviceGetUuid_v2", uuid, 0)
    digits = bytes(uuid).hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
