"""The application's interface: sessions and regions that outlive the process, and the forward state.

    from mpsguard import client

    with client.join("llm") as session:  # writer or standby, as `mpsguard run --standby` asks for
        with session.open_or_create("weights", make_chunks, va=0x200000000000, gpu="GPU-...") as region:
            map_somehow(region.fds, region.layout)
            session.ready()  # a standby waits here
            state = session.state()  # None: nothing was published yet
            session.publish(b"step 7")

`mpsguard.client.mapped` (host memory) and `mpsguard.client.cuda` allocate, place and map such memory.

Importing this package needs only the standard library and msgspec, and no part of the guard's daemon. Every refusal is
a `VaultError` with a code.
"""

from mpsguard.client.latency import Latency
from mpsguard.client.membership import join
from mpsguard.client.region import Chunk, Region
from mpsguard.client.session import Session
from mpsguard.vault.address import DEFAULT_SOCKET
from mpsguard.vault.errors import (
    BadRequestError,
    Code,
    ExistsError,
    LayoutMismatchError,
    LeaseHeldError,
    NotPermittedError,
    QuotaError,
    SealedError,
    StaleGenerationError,
    TooLargeError,
    UnavailableError,
    UnknownRegionError,
    UnknownSessionError,
    VaultError,
    WrongGpuError,
)
from mpsguard.vault.region import Grant, LeaseRole, RegionLayout
from mpsguard.vault.state_buffer import State

__all__ = [
    "DEFAULT_SOCKET",
    "BadRequestError",
    "Chunk",
    "Code",
    "ExistsError",
    "Grant",
    "Latency",
    "LayoutMismatchError",
    "LeaseHeldError",
    "LeaseRole",
    "NotPermittedError",
    "QuotaError",
    "Region",
    "RegionLayout",
    "SealedError",
    "Session",
    "StaleGenerationError",
    "State",
    "TooLargeError",
    "UnavailableError",
    "UnknownRegionError",
    "UnknownSessionError",
    "VaultError",
    "WrongGpuError",
    "join",
]
