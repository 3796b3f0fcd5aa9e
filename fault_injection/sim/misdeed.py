"""What a simulated client does wrong, by the name of a numbered fault: the twin of `cuda/faults.cuh`."""

import os
import signal
from collections.abc import Callable

from fault_injection import catalog
from fault_injection.sim.cuda import CudaProcess
from fault_injection.sim.gpu_faults import FAULTS

NAMES = tuple(row.name for row in catalog.FAULTS if row.twin and row.by_client)
_ENDLESS_KERNEL_S, _LONG_KERNEL_S, _SHORT_KERNEL_S = 60.0, 3.0, 0.05


def prepared(cuda: CudaProcess, name: str, in_flight: float | None = None) -> Callable[[], None]:
    """Make ready what the fault needs; what is returned commits it. Its error shows at the next synchronisation.

    A kernel that an end of the process leaves in flight takes ``in_flight`` seconds, if they are given.
    """
    row = catalog.named(name)
    if name in FAULTS:
        return lambda: cuda.launch(0.0, name)
    if row.never_returns:
        return lambda: cuda.launch(_ENDLESS_KERNEL_S if in_flight is None else in_flight)
    if row.in_flight:
        usual = _LONG_KERNEL_S if row.innocents else _SHORT_KERNEL_S
        cuda.launch(usual if in_flight is None else in_flight)
    return lambda: _end(row)


def _end(row: catalog.Fault) -> None:
    if row.ends == "exit":
        os._exit(0)
    os.kill(os.getpid(), getattr(signal, row.ends))
