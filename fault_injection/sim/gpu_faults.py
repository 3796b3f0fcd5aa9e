"""What each fault does to the simulated GPU.

The effects come from the numbered faults (`fault_injection/faults.toml`): the errors of the culprit and of the other
clients, and their delays. Reading that table is a fifth of what a simulated program's start costs: import this when
there is a fault.
"""

from fault_injection import catalog
from fault_injection.sim.gpu import CudaError, Fault

_MMU_NOTICED_S, _SM_NOTICED_S = 0.147, 0.015


def _simulated(row: catalog.Fault) -> Fault:
    """A row of the numbered faults; where several codes were seen, the first of them."""
    by_mmu = 31 in row.xids
    return Fault(
        CudaError(row.culprit[0]),
        CudaError(row.innocents[0]) if row.innocents else CudaError.SUCCESS,
        _MMU_NOTICED_S if by_mmu else _SM_NOTICED_S,
        sum(row.delay_ms) / 2000 if row.delay_ms else 0.0,
        names_client=by_mmu,
    )


FAULTS: dict[str, Fault] = {
    row.name: _simulated(row) for row in catalog.FAULTS if row.twin and row.by_client and row.culprit
}
"""What a kernel can run into, by name."""
