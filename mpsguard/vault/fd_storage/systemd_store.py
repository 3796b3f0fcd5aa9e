"""The service manager's descriptor store as a keeper (systemd.service(5), FileDescriptorStoreMax=).

systemd drops what goes beyond its limit and tells nobody. So each parcel comes with a receipt: once the manager has
dealt with the message, and our own copy is closed, the receipt says whether anybody keeps the parcel. The store lives
through crashes and restarts of the service, but not through `systemctl stop`.
"""

import asyncio
from typing import Final

from mpsguard.linux import fd_bundle, service_manager
from mpsguard.linux.fd_bundle import FdBundle
from mpsguard.linux.service_barrier import barrier
from mpsguard.vault.errors import UnavailableError

_DEADLINE: Final = 5.0
"""Seconds that the service manager may take."""


class SystemdStore:
    """A `Keeper`; owns nothing."""

    async def keep(self, name: str, parcel: FdBundle) -> None:
        """See `Keeper.keep`."""
        await asyncio.to_thread(_keep, name, parcel)

    async def forget(self, name: str) -> None:
        """See `Keeper.forget`."""
        await asyncio.to_thread(service_manager.notify, "FDSTOREREMOVE=1", f"FDNAME={name}")

    async def lost(self) -> None:
        """The service manager outlives us."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing to let go of."""


def _keep(name: str, parcel: FdBundle) -> None:
    # On a thread: a service manager that is busy lets its senders wait.
    with parcel.receipt:
        try:
            with parcel.kept:
                told = service_manager.notify("FDSTORE=1", "FDPOLL=0", f"FDNAME={name}", fds=(parcel.kept.fileno(),))
                dealt_with = told and barrier(_DEADLINE)
        except OSError as error:
            raise UnavailableError(f"the service manager cannot be told of {name}: {error.strerror}") from None
        if not dealt_with:
            raise UnavailableError(f"the service manager did not take {name} within {_DEADLINE:g} s")
        if not fd_bundle.is_kept(parcel.receipt):
            raise UnavailableError(f"the service manager did not keep {name}: FileDescriptorStoreMax= is reached")
