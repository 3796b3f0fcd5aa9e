"""The template of a pool's workers: it has imported what they need, and forks them.

Most of a worker's preparation are imports, which are the same for all of them, and take up memory in each. A fork
shares both. It has only the thread that forks, and no context of the GPU: so nothing may have started threads in
Python by then, nor have initialized CUDA, which a fork cannot use (cuInit fails in it: CUDA_ERROR_NOT_INITIALIZED).
"""

import ctypes
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

from mpsguard.images.pool import worker
from mpsguard.images.pool.template_messages import (
    BEGIN,
    PACKET,
    ForkWorker,
    ReapWorker,
    WorkerForked,
    decode_to_template,
    encode,
)
from mpsguard.images.pool.worker_modules import load, without_collector
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.processes.process_tree import ends_with_parent
from mpsguard.linux.sockets import seqpacket

_NOT_INITIALIZED: Final = 3
"""CUDA_ERROR_NOT_INITIALIZED, the answer of every call of the driver before cuInit."""


def main(channel_fd: int, prepare: str, modules: list[str]) -> int:
    """Run the template, and in each fork a worker; return the exit code.

    Args:
        channel_fd: of the socket to the pool, owned by this function.
        prepare: the workers' preparation, as ``module:function``.
        modules: what to import, in this order.
    """
    with socket.socket(fileno=channel_fd) as channel:
        if seqpacket.peer(channel).uid != os.geteuid():
            raise PermissionError("the pool is another user's")
        # PyTorch asks NVML then whether there is a GPU, and not CUDA (torch.cuda.is_available); transformers asks.
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        ends_with_parent()
        if os.getppid() != seqpacket.peer(channel).pid:
            return 0
        with without_collector():
            for module in modules:
                load(module, f"--import {module}")
                if why := _unfit():
                    sys.exit(f"mpsguard pool: --import {module}: {why}")
        ours = _fork_workers(channel)
    if ours is None:
        return 0
    if not _is_owned(ours):
        # What imports have registered for the end is the template's.
        os._exit(0)
    return worker.main(ours.detach(), prepare)


def _fork_workers(channel: socket.socket) -> socket.socket | None:
    """Fork until the pool ends, then return None; in each fork, return its end of its own channel."""
    pids: dict[int, int] = {}
    # Were it ignored, or had an import a handler that waits for every child, pids would be free too early.
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    while True:
        try:
            packet = seqpacket.receive(channel, PACKET, max_fds=1)
        except OSError:
            return None
        if packet.end or packet.truncated:
            close_all(packet.fds)
            return None
        match decode_to_template(packet.data):
            case ForkWorker(number):
                pid = _fork()
                if pid == 0:
                    os.setsid()
                    if handler is not None:
                        signal.signal(signal.SIGCHLD, handler)
                    return socket.socket(fileno=packet.fds[0])
                close_all(packet.fds)
                if pid is not None:
                    pids[number] = pid
                with suppress(OSError):  # the pool's end is heard above
                    seqpacket.send(channel, encode(WorkerForked(number, pid or 0)))
            case ReapWorker(number):
                if (ended := pids.pop(number, None)) is not None:
                    os.kill(ended, signal.SIGKILL)
                    os.waitpid(ended, 0)


def _is_owned(channel: socket.socket) -> bool:
    """Wait until the pool has this worker's pidfd; return False if it never will."""
    try:
        return seqpacket.receive(channel, PACKET).data == BEGIN
    except OSError:
        return False


def _fork() -> int | None:
    """Fork; return None if no process is left."""
    # What is not written yet would be written by both: also by what is not Python's.
    for stream in (sys.stdout, sys.stderr):
        # There is none if the pool was started without, and none is left at the end of a pipe that nothing reads.
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
    try:
        return os.fork()
    except OSError:
        return None


def _unfit() -> str | None:
    """Return why this process cannot be forked any more; None if it can."""
    if threading.active_count() > 1:
        return "it starts threads, which a fork does not have; import it in the preparation"
    if _has_cuda():
        return "it initializes CUDA, which a fork cannot use; import it in the preparation"
    return None


def _has_cuda() -> bool:
    """Return whether CUDA is initialized in this process."""
    if b"/libcuda.so" not in Path("/proc/self/maps").read_bytes():
        return False
    device = ctypes.c_int()
    return int(ctypes.CDLL("libcuda.so.1").cuCtxGetDevice(ctypes.byref(device))) != _NOT_INITIALIZED


if __name__ == "__main__":
    # As in `mpsguard.images.pool.worker`: its `Warm` is that of the module by its name.
    sys.exit(import_module("mpsguard.images.pool.template").main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
