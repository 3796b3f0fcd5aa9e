"""A service on the simulated GPU: the token server of `fault_injection.takeover`, with a kernel for each token.

With MPSGUARD_ROLE it is a process of `mpsguard run --standby 1 --listen ...`. Otherwise it is a service without
mpsguard: it listens on its own port, and its progress is lost with the process.

In a process that begins at the first token, the kernel of token HELD takes long, so that a fault hits this kernel. It
prints the events of `tests.bench.simulated_client`, and `serves` with its port.
"""

import os
import socket
import sys
from pathlib import Path
from typing import Final

if not __package__:  # started by path, so that it needs no PYTHONPATH
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.demo.said import emit
from fault_injection.sim.cuda import CudaFailureError, CudaProcess
from fault_injection.takeover.keeping import Alone, Keeping
from fault_injection.takeover.server import Server
from fault_injection.takeover.traps import Point
from mpsguard import client
from mpsguard.linux.systemd import service_manager
from mpsguard.vault.wire.supervisor_wire import ROLE_VARIABLE

SESSION: Final = "demo"
HELD: Final = 20
"""Tokens that are served before the long kernel."""
DIED, FAILED, FENCED = 3, 4, 5
_KERNEL_S: Final = 0.001
_LONG_S: Final = 60.0


class Gpu:
    """The kernels of this process."""

    def __init__(self, cuda: CudaProcess) -> None:
        self._cuda = cuda
        self._left: int | None = HELD
        """Kernels until the long one; None: there is none."""

    def resumed(self) -> None:
        """Make all kernels short, because this process continues another one's work."""
        self._left = None

    def kernel(self) -> None:
        """Run the kernel of one token; raise CudaFailureError."""
        self._cuda.launch(_LONG_S if self._left == 0 else _KERNEL_S)
        self._cuda.synchronize()
        if self._left is not None:
            self._left -= 1


def main() -> int:
    """Run one process of the service and return the exit status."""
    cuda = CudaProcess()
    started = False
    try:
        cuda.init()
        cuda.create_context(1)
        emit("context", mps=int(cuda.mps))
        cuda.launch(_KERNEL_S)
        cuda.synchronize()
        emit("first_kernel")
        started = True
        # Never returns: ended by a signal or an exception.
        _serve(Gpu(cuda))
    except CudaFailureError as failure:
        emit("died" if started else "failed", code=failure.code)
        return DIED if started else FAILED
    except client.StaleGenerationError:
        emit("fenced")
        return FENCED
    finally:
        cuda.close()
    return 0


def _serve(gpu: Gpu) -> None:
    session: Keeping = client.join(SESSION, keep=0) if ROLE_VARIABLE in os.environ else Alone()
    handed = service_manager.take_listen_fds()
    listener = socket.socket(fileno=min(handed)) if handed else socket.create_server(("127.0.0.1", 0))

    def reach(point: Point) -> None:
        if point is Point.PROMOTED:
            if session.state() is not None:
                gpu.resumed()
            emit("serves", port=listener.getsockname()[1])

    Server(listener, session, reach, gpu.kernel).run()


if __name__ == "__main__":
    sys.exit(main())
