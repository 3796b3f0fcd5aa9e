"""The service manager's descriptor store as a descriptor storage (systemd.service(5), FileDescriptorStoreMax=).

systemd silently drops descriptors beyond its limit. So each bundle has a receipt: once the manager has processed the
message, and the guard's own copy is closed, the receipt shows whether the bundle is still open anywhere. The store
survives crashes and restarts of the service, but not `systemctl stop`.
"""

import asyncio
from typing import Final
from weakref import WeakValueDictionary

from mpsguard.linux.descriptors import fd_bundle
from mpsguard.linux.descriptors.fd_bundle import FdBundle
from mpsguard.linux.systemd import service_manager
from mpsguard.linux.systemd.service_manager import barrier
from mpsguard.linux.tasks import finish
from mpsguard.vault.wire.errors import UnavailableError

_DEADLINE: Final = 5.0
"""Seconds for the service manager to process a message."""


class SystemdStore:
    """An `FdStorage`. Messages of one bundle reach the service manager in the order of the calls."""

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Of bundles with a message on its way."""

    async def keep(self, name: str, bundle: FdBundle) -> None:
        """See `FdStorage.keep`. Once it has begun, it ends before its caller does, which may `forget` then."""
        try:
            async with self._turn(name):
                await finish(asyncio.to_thread(_keep, name, bundle))
        finally:
            bundle.kept.close()
            bundle.receipt.close()

    async def forget(self, name: str) -> None:
        """See `FdStorage.forget`."""
        async with self._turn(name):
            await finish(asyncio.to_thread(service_manager.notify, "FDSTOREREMOVE=1", f"FDNAME={name}"))

    def _turn(self, name: str) -> asyncio.Lock:
        return self._turns.setdefault(name, asyncio.Lock())

    async def lost(self) -> None:
        """Never return: the service manager outlives the guard."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Do nothing: there is no connection."""


def _keep(name: str, bundle: FdBundle) -> None:
    # Runs on a thread, because sending to a busy service manager blocks.
    with bundle.receipt:
        try:
            with bundle.kept:
                sent = service_manager.notify("FDSTORE=1", "FDPOLL=0", f"FDNAME={name}", fds=(bundle.kept.fileno(),))
                processed = sent and barrier(_DEADLINE)
        except OSError as error:
            raise UnavailableError(f"the service manager cannot be told of {name}: {error.strerror}") from None
        if not processed:
            raise UnavailableError(f"the service manager did not take {name} within {_DEADLINE:g} s")
        if not fd_bundle.is_kept(bundle.receipt):
            raise UnavailableError(f"the service manager did not keep {name}: FileDescriptorStoreMax= is reached")
