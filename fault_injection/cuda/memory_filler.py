"""A CUDA client that allocates until it is refused, or has what it wants; then it holds that until it is told to stop.

Driver API by ctypes, standard library alone. Options: `--most BYTES`, `--piece BYTES` (of each allocation; what is left
below a piece is filled with smaller ones down to 2 MiB), `--over BYTES` (say when so much is held). Events as those of
`worker.cu`: start, context, over (bytes), filled (bytes; code of the refusal, 0 if there was none), finished. Exit
status: 0, or 4 without a context.
"""

import argparse
import ctypes
import json
import os
import sys
import time

_SMALLEST = 2 << 20


def emit(event: str, **members: object) -> None:
    """Print one event at once."""
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run the client; the exit status."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--most", type=int, required=True)
    parser.add_argument("--piece", type=int, default=1 << 30)
    parser.add_argument("--over", type=int, default=1 << 62)
    options = parser.parse_args()
    emit("start")
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    for name, *arguments in (("cuInit", 0), ("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)):
        if code := getattr(cuda, name)(*arguments):
            emit("failed", code=code, name="CUDA error", call=name)
            return 4
    cuda.cuCtxSetCurrent(context)
    emit("context")
    held, piece, code = 0, options.piece, 0
    told = False
    while held < options.most and piece >= _SMALLEST:
        size = min(piece, options.most - held)
        address = ctypes.c_uint64()
        refused = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        if refused:
            code = refused
            piece //= 2
            continue
        held += size
        if held > options.over and not told:
            told = True
            emit("over", bytes=held)
    emit("filled", bytes=held, code=code if held < options.most else 0)
    sys.stdin.read()
    emit("finished", iterations=0, bytes=held)
    return 0


if __name__ == "__main__":
    sys.exit(main())
