"""The simulated GPU: its name, its faults, its memory.

The fault table is what one H200 with driver 580.159.04 did (FACTS, section 1): which error the culprit sees, which one
everybody else sees, when the server says so and when the clients are told.
"""

import os
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

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
    names_culprit: bool = False

    @property
    def contained(self) -> bool:
        """Whether only the culprit is hurt."""
        return self.others is CudaError.SUCCESS


_MMU = Fault(CudaError.ILLEGAL_ADDRESS, CudaError.ILLEGAL_ADDRESS, 0.147, 0.15, names_culprit=True)
CRASH = _MMU
"""A process that dies with a kernel in flight."""

FAULTS: dict[str, Fault] = {
    "null": _MMU,
    "misaligned": Fault(CudaError.SUCCESS, CudaError.MISALIGNED_ADDRESS, 0.015, 0.1),
    "illegal": Fault(CudaError.ILLEGAL_INSTRUCTION, CudaError.ILLEGAL_INSTRUCTION, 0.015, 0.1),
    "trap": Fault(CudaError.LAUNCH_FAILED, CudaError.LAUNCH_FAILED, 0.015, 0.37),
    "assert": Fault(CudaError.ASSERT, CudaError.SUCCESS),
}


def printed(uuid: bytes) -> str:
    """A UUID as NVIDIA's tools print it."""
    return f"GPU-{UUID(bytes=uuid)}"


def allocate(mib: int) -> int:
    """Simulated GPU memory: a memfd that the client owns and the server maps too."""
    fd = os.memfd_create("simulated-gpu-memory", os.MFD_CLOEXEC)
    os.ftruncate(fd, min(mib, MEMORY_LIMIT_MIB) << 20)
    return fd
