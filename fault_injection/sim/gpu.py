"""The simulated GPU: its name, its errors, its memory; what each fault does is in `gpu_faults`."""

import os
from enum import IntEnum
from typing import NamedTuple

NAME = "Simulated GPU"
BUS = 6
UUID_BYTES = bytes.fromhex("51304c47 0000 4000 8000 000000000000")
MEMORY_LIMIT_MIB = 1024


class CudaError(IntEnum):
    """The CUDA driver errors that the simulation speaks of."""

    SUCCESS = 0
    OUT_OF_MEMORY = 2
    DEVICE_UNAVAILABLE = 46
    INVALID_CONTEXT = 201
    ILLEGAL_ADDRESS = 700
    ASSERT = 710
    ILLEGAL_INSTRUCTION = 715
    MISALIGNED_ADDRESS = 716
    LAUNCH_FAILED = 719
    MPS_RPC_FAILURE = 806
    MPS_SERVER_NOT_READY = 807
    MPS_CLIENT_TERMINATED = 810


class Fault(NamedTuple):
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


def printed(uuid: bytes) -> str:
    """A UUID as NVIDIA's tools print it."""
    digits = uuid.hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def allocate(mib: int) -> int:
    """Simulated GPU memory: a memfd that the client owns and the server maps too."""
    fd = os.memfd_create("simulated-gpu-memory", os.MFD_CLOEXEC)
    os.ftruncate(fd, min(mib, MEMORY_LIMIT_MIB) << 20)
    return fd
