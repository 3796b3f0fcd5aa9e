"""GPU memory regions, allocated and mapped: needs the CUDA driver and the package cuda-bindings (extra ``cuda``).

    from mpsguard.vault.client import cuda

    with cuda.open_or_create(session, "weights", 64 << 30) as memory: ...  # the first writer creates, others map
    with cuda.create(session, "weights", 64 << 30) as memory: ...        # mapped writable, and in the vault
    with cuda.attach(session, "weights") as memory:                      # in another process, at the same address
        array = cupy.asarray(memory.view(0, 4096))                       # or torch, numba: no copy
        numpy.frombuffer(memory.view(0, 4096).read(), numpy.uint8)       # a copy in host memory

By default a region is a single chunk: the cost of mapping depends on the number of handles, not on bytes.
"""

from mpsguard.vault.client import mapped
from mpsguard.vault.client.cuda.driver import CudaBackend, CudaError, NoCudaError
from mpsguard.vault.client.mapped import AddressTakenError, Memory, View
from mpsguard.vault.client.session import Session

__all__ = [
    "AddressTakenError",
    "CudaBackend",
    "CudaError",
    "Memory",
    "NoCudaError",
    "View",
    "attach",
    "create",
    "open_or_create",
]


def create(
    session: Session, name: str, size: int, *, device: int = 0, largest: int | None = None, metadata: bytes = b""
) -> Memory:
    """Allocate ``size`` bytes on a GPU (CUDA's ordinal) as a region: see `mpsguard.vault.client.mapped.create`.

    Raises:
        NoCudaError: CUDA is not available.
        CudaError: the driver refuses.
    """
    return mapped.create(session, CudaBackend(device), name, size, largest=largest, metadata=metadata)


def attach(session: Session, name: str, *, device: int = 0, writable: bool = False) -> Memory:
    """Map a region of this GPU at its creator's address: see `mpsguard.vault.client.mapped.attach`.

    Raises:
        NoCudaError: CUDA is not available.
        CudaError: the driver refuses.
    """
    return mapped.attach(session, CudaBackend(device), name, writable=writable)


def open_or_create(
    session: Session,
    name: str,
    size: int,
    *,
    device: int = 0,
    writable: bool = True,
    largest: int | None = None,
    metadata: bytes = b"",
) -> Memory:
    """Map a region of this GPU; create it first if it does not exist: see `client.mapped.open_or_create`.

    Raises:
        NoCudaError: CUDA is not available.
        CudaError: the driver refuses.
    """
    backend = CudaBackend(device)
    return mapped.open_or_create(session, backend, name, size, writable=writable, largest=largest, metadata=metadata)
