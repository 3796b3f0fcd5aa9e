"""A simulation of libcuda: how a CUDA process connects to an MPS server, and what it receives from it.

Connections and their order as seen on driver 580.159.04: a silent probe, one for `cuInit`, one for each context. If
`control` cannot be connected, the process runs without MPS and without an error.
"""

import ctypes
import mmap
import os
from pathlib import Path
from typing import Final

from fault_injection.sim import gpu
from fault_injection.sim.address_space import OwnSpace
from fault_injection.sim.directory import pipe_directory
from fault_injection.sim.gpu import CudaError
from fault_injection.sim.kernel import KERNEL
from fault_injection.sim.wire import DESCRIPTOR, HELLO, Channel, Peer

_FIRST_FLAGS = 0xFF

_CODE: Final = 4 << 20
"""Bytes; CUDA reserves what it maps for the GPU in the process too, code among it, in whole pages of 2 MiB."""
_HUGE_PAGE: Final = 2 << 20
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class CudaFailureError(Exception):
    """A CUDA call returned an error."""

    def __init__(self, code: int) -> None:
        super().__init__(f"CUDA error {code}")
        self.code = code


class CudaProcess:
    """The CUDA side of this process."""

    def __init__(self, directory: Path | None = None) -> None:
        self._control = str((directory or pipe_directory()) / "control")
        self._space: OwnSpace | None = None
        self._process: Channel | None = None
        self._context: Channel | None = None
        self._code: int | None = None
        self.memory: int | None = None
        self.mps = False

    def init(self) -> None:
        """Do what `cuInit` does: probe, then the process's own connection."""
        self._space = OwnSpace()
        try:
            probe = Channel.connect(self._control)
        except OSError:
            return
        probe.receive()
        probe.close()
        self._process = self._attach(0, _FIRST_FLAGS)
        self.mps = True

    def create_context(self, memory_mib: int) -> None:
        """Create context 1, allocate its memory; CudaFailureError if the process's limit does not allow it."""
        self.memory = gpu.allocate(memory_mib)
        self._code = _reserve_code()
        if self.mps:
            self._context = self._attach(1, 0)
            if self._space is not None:
                self._space.offer(self._context)
            self._context.send(DESCRIPTOR, fd=self.memory)
            code = self._context.receive_int()
            if code is None or code:
                raise CudaFailureError(CudaError.MPS_RPC_FAILURE if code is None else code)

    def launch(self, seconds: float, fault: str = "") -> None:
        """Start a kernel and do not wait for it."""
        if self._context is not None and not self._context.send(KERNEL.pack(seconds, fault.encode())):
            raise CudaFailureError(CudaError.MPS_RPC_FAILURE)

    def synchronize(self) -> None:
        """Wait for the kernel; raises what became of it."""
        if self._context is None:
            return
        result = self._context.receive_int()
        if result is None:
            raise CudaFailureError(CudaError.MPS_RPC_FAILURE)
        if result:
            raise CudaFailureError(result)

    def close(self) -> None:
        """Leave in order: context, then process."""
        for channel in (self._context, self._process):
            if channel is not None:
                channel.close()
        if self._space is not None:
            self._space.close()
        if self.memory is not None:
            os.close(self.memory)
            self.memory = None
        if self._code is not None:
            _libc.munmap(self._code, _CODE)
            self._code = None

    def _attach(self, context: int, flags: int) -> Channel:
        """Shake hands with the daemon, then with the server it hands over; the daemon waits for the outcome."""
        try:
            daemon = Channel.connect(self._control)
        except OSError as error:
            raise CudaFailureError(CudaError.MPS_RPC_FAILURE) from error
        try:
            if daemon.receive().data != HELLO or not daemon.send_credentials() or not daemon.send_int(Peer.CLIENT):
                raise CudaFailureError(CudaError.MPS_RPC_FAILURE)
            message = daemon.receive()
            if message.data != DESCRIPTOR or not message.fds:
                raise CudaFailureError(CudaError.MPS_RPC_FAILURE)
            server = Channel.adopt(message.fds[0])
            server.receive()
            server.send_credentials()
            server.send_int(context)
            server.send_int(flags)
            status = server.receive_int()
            code = CudaError.MPS_RPC_FAILURE if status is None else status
            daemon.send_int(code)
            if code:
                server.close()
                raise CudaFailureError(code)
            return server
        finally:
            daemon.close()


def _reserve_code() -> int:
    """Reserve addresses as CUDA does for code, with a gap on either side; where they begin. The process keeps them."""
    spare = 2 * _HUGE_PAGE
    start = _libc.mmap(None, _CODE + spare, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if start is None or start == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "no addresses left")
    code: int = (start // _HUGE_PAGE + 1) * _HUGE_PAGE
    _libc.munmap(start, code - start)
    _libc.munmap(code + _CODE, start + spare - code)
    return code
