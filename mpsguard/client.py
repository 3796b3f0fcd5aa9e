"""The application's interface: sessions and regions that outlive the process, and the forward state.

    from mpsguard import client

    with client.join("llm") as session:  # writer or standby, as `mpsguard run --standby` asks for
        with session.open_or_create("weights", make_chunks, va=0x200000000000, gpu="GPU-...") as region:
            map_somehow(region.fds, region.layout)
            session.ready()  # a standby waits here
            state = session.state()  # None: nothing was published yet
            session.publish(b"step 7")

`client.mapped` (host memory) and `client.cuda` allocate, place and map such memory. They, and the other modules that
are attributes of this one, are loaded when they are first used.

Importing this module needs only the standard library and msgspec, and no part of the guard's daemon. Every refusal is
a `VaultError` with a code.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Final

from mpsguard.vault.client.latency import Latency
from mpsguard.vault.client.membership import join
from mpsguard.vault.client.region import Chunk, Region
from mpsguard.vault.client.session import Session
from mpsguard.vault.wire.address import DEFAULT_SOCKET
from mpsguard.vault.wire.errors import (
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
from mpsguard.vault.wire.region import Grant, LeaseRole, RegionLayout
from mpsguard.vault.wire.state_buffer import State

if TYPE_CHECKING:
    from mpsguard.vault.client import cuda, kept_connections, mapped, poison_requests, tcp_progress, torch_regions

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
    "cuda",
    "join",
    "kept_connections",
    "mapped",
    "poison_requests",
    "tcp_progress",
    "torch_regions",
]

_MODULES: Final = frozenset({"cuda", "kept_connections", "mapped", "poison_requests", "tcp_progress", "torch_regions"})


def __getattr__(name: str) -> ModuleType:
    """Load a module of the client when it is first used: some need what not every program has."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"mpsguard.vault.client.{name}")
