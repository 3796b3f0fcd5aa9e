"""The simulated GPU: its name, its faults, its memory.

The effects of a fault come from the numbered faults (`fault_injection/faults.toml`): the errors of the culprit and of
the other clients, and their delays.
"""

import os
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from fault_injection import catalog

NAME = "Simulated GPU"
BUS = 6
UUID_BYTES = UUID("51304c47-0000-4000-8000-000000000000").bytes
MEMORY_LIMIT_MIB = 1024


class CudaError(IntEnum):
    """The CUDA driver errors that the simulation speaks of."""

    SUCCESS = 0
    INVALID_CONTEXT = 201
    ILLEGAL_ADDRESS = 700
    ASSERT = 710
    ILLEGAL_INSTRUCTION = 715
    MISALIGNED_ADDRESS = 716
    LAUNCH_FAILED = 719
    MPS_RPC_FAILURE = 806
    MPS_SERVER_NOT_READY = 807
    MPS_CLIENT_TERMINATED = 810


@dataclass(frozen=True)
class Fault:
    """What one kind of GPU fault does to an MPS server's clients."""

    culprit: CudaError
    others: CudaError
    noticed_s: float = 0.0
    delivered_s: float = 0.0
    names_client: bool = False

    @property
    def contained(self) -> bool:
        """Whether only the culprit is hurt."""
        return self.others is CudaError.SUCCESS


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


_MMU_NOTICED_S, _SM_NOTICED_S = 0.147, 0.015

FAULTS: dict[str, Fault] = {
    row.name: _simulated(row) for row in catalog.FAULTS if row.twin and row.by_client and row.culprit
}
"""What a kernel can run into, by name."""

CRASH = FAULTS["null"]
"""A process that dies with a kernel in flight."""


def printed(uuid: bytes) -> str:
    """A UUID as NVIDIA's tools print it."""
    return f"GPU-{UUID(bytes=uuid)}"


def allocate(mib: int) -> int:
    """Simulated GPU memory: a memfd that the client owns and the server maps too."""
    fd = os.memfd_create("simulated-gpu-memory", os.MFD_CLOEXEC)
    os.ftruncate(fd, min(mib, MEMORY_LIMIT_MIB) << 20)
    return fd
