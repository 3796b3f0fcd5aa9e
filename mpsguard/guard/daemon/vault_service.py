"""Vault service: restores the vault's stored sessions, serves them, and leaves them to the next guard.

python -m mpsguard.guard.daemon.vault_service RUN_DIRECTORY
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

from mpsguard.guard.config import Config
from mpsguard.guard.daemon import own_directories
from mpsguard.linux.descriptors import fd_bundle
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.files.file_lock import FileLock, LockHeldError
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.linux.systemd import service_manager
from mpsguard.linux.tasks import Owner
from mpsguard.vault.server import server
from mpsguard.vault.server.early_deaths import EarlyDeath
from mpsguard.vault.server.fd_storage.background import BackgroundStorage
from mpsguard.vault.server.fd_storage.holder_client import HolderClient
from mpsguard.vault.server.fd_storage.storage import PREFIX, FdStorage
from mpsguard.vault.server.fd_storage.systemd_store import SystemdStore
from mpsguard.vault.server.leases import hold_all
from mpsguard.vault.server.quota import Quota
from mpsguard.vault.server.restoration import Restored, restore
from mpsguard.vault.server.server import VaultServer
from mpsguard.vault.server.vault import Vault
from mpsguard.vault.wire.address import socket_path
from mpsguard.vault.wire.errors import UnavailableError

_PROBE: Final = f"{PREFIX}probe"
_LOCK: Final = "vault.lock"


class VaultStartError(Exception):
    """The vault cannot be opened; one line says why."""


def take_bundles(fds: dict[int, str]) -> dict[str, socket.socket]:
    """Remove the vault's descriptor bundles from ``fds`` (descriptor to name), and return them by name."""
    bundles: dict[str, socket.socket] = {}
    for fd, name in list(fds.items()):
        if not name.startswith(PREFIX):
            continue
        del fds[fd]
        if name == _PROBE:
            os.close(fd)
            continue
        try:
            bundle = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
            continue
        # A bundle that was stored again under its name (`Restored.renewed`) has more than the first one.
        first = bundles.get(name)
        if first is not None and _size(first) >= _size(bundle):
            first, bundle = bundle, first
        if first is not None:
            first.close()
        bundles[name] = bundle
    return bundles


def _size(bundle: socket.socket) -> int:
    """Return the number of descriptors in a bundle; 0 for one that cannot be read."""
    try:
        _, fds = fd_bundle.unpack(bundle)
    except OSError:
        return 0
    close_all(fds)
    return len(fds)


class VaultService:
    """Owns the vault, its descriptor storage and its server."""

    def __init__(
        self,
        run_directory: Path,
        quota: Quota,
        stats: StatReader,
        *,
        gpus: frozenset[str] | None = None,
        simulated: bool = False,
        early_death: Callable[[EarlyDeath], None] = lambda _: None,
    ) -> None:
        """Create it; `open` starts it.

        Args:
            run_directory: of the guard, for the socket, the lock and the holder.
            quota: the limits of each user.
            stats: looks up processes; it belongs to the caller.
            gpus: UUIDs of the GPUs that regions may be on; None: any.
            simulated: whether memfds may stand for GPU memory.
            early_death: see `mpsguard.vault.server.early_deaths`.
        """
        self._early_death = early_death
        self._run_directory = run_directory
        self._quota = quota
        self._stats = stats
        self._gpus = gpus
        self._simulated = simulated
        self._lock: FileLock | None = None
        self._storage: FdStorage | None = None
        self._background_storage: BackgroundStorage | None = None
        self._server: VaultServer | None = None
        self._tasks = Owner()
        self._vault: Vault | None = None
        self.unreadable: list[str] = []
        """Bundles that this version cannot read, and leaves in the storage."""
        self.lost: list[str] = []
        """Regions of the manifests with missing descriptors."""

    @property
    def is_open(self) -> bool:
        """Whether the vault is open."""
        return self._vault is not None

    @property
    def vault(self) -> Vault:
        """The vault, which must be open."""
        assert self._vault is not None, "not open"
        return self._vault

    async def open(self, bundles: dict[str, socket.socket], listener: socket.socket | None = None) -> None:
        """Restore the sessions in ``bundles`` and in a holder process, and serve them.

        Args:
            bundles: the result of `take_bundles`; this object owns them from now on.
            listener: a listening socket from the service manager.

        Raises:
            VaultStartError: it cannot be opened; nothing is changed.
        """
        try:
            with own_directories.open_run(self._run_directory) as directory:
                self._lock = FileLock.take(directory, _LOCK)
            storage = self._storage = await self._choose_storage()
            self._background_storage = BackgroundStorage(storage)
            self._vault = Vault(
                self._background_storage, self._quota, gpus=self._gpus, on_early_death=self._early_death
            )
            await self._restore(bundles, storage)
            self._server = VaultServer(self._vault, self._stats, simulated=self._simulated)
            self._server.open(self.path, listener)
        except LockHeldError as error:
            raise VaultStartError(f"{error}: another guard has this vault") from None
        except UnavailableError as error:
            raise VaultStartError(f"vault: {error}") from None
        except OSError as error:
            raise VaultStartError(f"{error.filename or self._run_directory}: {error.strerror}") from None
        finally:
            for sock in bundles.values():
                sock.close()
        watch = partial(self._background_storage.watch, self._vault.store.contents)
        self._tasks.keep("the watch over the vault's storage", watch)

    @property
    def path(self) -> Path:
        """Of the socket."""
        return socket_path(self._run_directory)

    def listen(self) -> socket.socket:
        """Return a listening socket in the place of one without a name, on any thread; OSError, LockHeldError."""
        if self._lock is not None and not self._lock.is_at(self._run_directory / _LOCK):
            before = self._lock
            with own_directories.open_run(self._run_directory) as directory:
                self._lock = FileLock.take(directory, _LOCK)
            before.close()
        return server.listen(self.path)

    def serve(self, listener: socket.socket) -> None:
        """Serve on a listening socket from now on, in the place of the earlier one."""
        if self._server is not None:
            self._server.serve(listener)
        else:
            listener.close()

    async def close(self) -> None:
        """Stop; all sessions stay stored for the next guard, even if the service manager empties its store."""
        async with AsyncExitStack() as at_end:
            if self._lock is not None:
                at_end.callback(self._lock.close)
            if self._background_storage is not None:
                at_end.push_async_callback(self._background_storage.close)
                if self._vault is not None:
                    at_end.callback(self._vault.close)
                at_end.push_async_callback(self._leave_to_holder)
                at_end.push_async_callback(self._background_storage.settle)
            if self._vault is not None:
                at_end.push_async_callback(self._vault.settle)
            if self._server is not None:
                at_end.push_async_callback(self._server.close)
            at_end.push_async_callback(self._tasks.end)

    async def _choose_storage(self) -> FdStorage:
        store = SystemdStore()
        if "NOTIFY_SOCKET" in os.environ:
            try:
                await store.keep(_PROBE, fd_bundle.pack(_PROBE.encode(), ()))
            except UnavailableError:
                # A service without FileDescriptorStoreMax=, or another service manager.
                pass
            else:
                await store.forget(_PROBE)
                return store
        return await HolderClient.open(self._holder_directory)

    async def _restore(self, stored: Mapping[str, socket.socket], storage: FdStorage) -> None:
        # An orderly stop may have left a holder, although the service manager stores everything from now on.
        holder = storage if isinstance(storage, HolderClient) else await HolderClient.open(self._holder_directory)
        try:
            held = await holder.list()
            kept = held if storage is holder else stored
            try:
                # A bundle that both have is the same one.
                restored = restore({**held, **stored}, kept)
            finally:
                for sock in held.values():
                    sock.close()
            await self._adopt(restored, kept)
            if holder is not storage:
                await holder.leave()
        finally:
            if holder is not storage:
                await holder.close()

    async def _adopt(self, restored: Restored, kept: Collection[str]) -> None:
        """Take over what was restored, and have the storage, which has the bundles ``kept``, keep just that."""
        assert self._background_storage is not None
        self.unreadable, self.lost = restored.unreadable, restored.lost
        try:
            holders = await hold_all(restored.sessions, self._stats)
        except BaseException:
            restored.close()
            raise
        self.vault.adopt(restored, holders)
        whole = set(kept) - set(restored.renewed)
        await self._background_storage.keep_all(
            lambda: {name: fds for name, fds in self.vault.store.contents().items() if name not in whole}
        )
        for name in restored.unused:
            # Only stored bundles: one that is not stored may be created under the same name at this moment.
            if name in kept:
                self._background_storage.forget(name)

    async def _leave_to_holder(self) -> None:
        """Copy all bundles to a holder: `systemctl stop` empties the store, but keeps a holder (KillMode=process)."""
        if not isinstance(self._storage, SystemdStore) or self._vault is None or not self._vault.store.sessions:
            return
        try:
            holder = await HolderClient.open(self._holder_directory)
            beside = BackgroundStorage(holder)
            try:
                await beside.keep_all(self._vault.store.contents)
            finally:
                await beside.close()
        except (UnavailableError, OSError) as error:
            # The store still has everything, which suffices for a restart.
            await asyncio.to_thread(service_manager.notify, f"STATUS=vault: not left to a holder: {error}")

    @property
    def _holder_directory(self) -> Path:
        return self._run_directory / "holder"


def configured(settings: Config, stats: StatReader, early_death: Callable[[EarlyDeath], None]) -> VaultService:
    """Return the vault service of a configuration, which is not open yet."""
    limits = settings.vault
    quota = Quota(
        bytes_per_uid=limits.bytes_per_user,
        host_bytes_per_uid=limits.host_bytes_per_user,
        regions_per_uid=limits.regions_per_user,
        chunks_per_uid=limits.chunks_per_user,
    )
    named = {gpu for domain in settings.domain for gpu in domain.gpus}
    # By number or "all" nothing is said that could be held against a region.
    by_uuid = all(gpu.startswith(("GPU-", "MIG-")) for gpu in named)
    return VaultService(
        Path(settings.guard.run_directory),
        quota,
        stats,
        gpus=frozenset(named) if by_uuid else None,
        simulated=limits.simulated,
        early_death=early_death,
    )


async def _serve_alone(run_directory: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    given = service_manager.take_listen_fds()
    bundles = take_bundles(given)
    close_all(given)
    stats = StatReader()
    service = VaultService(run_directory, Quota(), stats, simulated="MPSGUARD_VAULT_SIMULATED" in os.environ)
    try:
        await service.open(bundles)
        service_manager.notify("READY=1")
        await stop.wait()
        service_manager.notify("STOPPING=1")
    finally:
        await service.close()
        stats.close()


if __name__ == "__main__":
    try:
        asyncio.run(_serve_alone(Path(sys.argv[1])))
    except VaultStartError as error:
        sys.exit(f"mpsguard vault: {error}")
