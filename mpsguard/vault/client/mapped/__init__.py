"""Mapped regions: what host memory (`host`) and GPU memory (`mpsguard.vault.client.cuda`) have in common.

memory = open_or_create(session, backend, "weights", size)  # writable; created if it does not exist
memory = create(session, backend, "weights", size)      # allocates and maps it, and gives it to the vault
with attach(session, backend, "weights") as memory:     # maps it at the same address, read-only
    view = memory.view(offset, nbytes)
"""

from mpsguard.vault.client.mapped.backend import AddressTakenError, Backend
from mpsguard.vault.client.mapped.host import HostBackend
from mpsguard.vault.client.mapped.memory import Memory, View, attach, create, open_or_create

__all__ = ["AddressTakenError", "Backend", "HostBackend", "Memory", "View", "attach", "create", "open_or_create"]
