"""Vault service: restores the vault's stored sessions, serves them, and leaves them to the next guard.

python -m mpsguard.daemon.vault_service RUN_DIRECTORY
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from mpsguard.linux.descriptors import fd_bundle
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.files.file_lock import FileLock, LockHeldError
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.linux.systemd import service_manager
from mpsguard.tasks import end_tasks
from mpsguard.vault.address import socket_path
from mpsguard.vault.early_deaths import EarlyDeath
from mpsguard.vault.errors import UnavailableError
from mpsguard.vault.fd_storage.background import BackgroundStorage
from mpsguard.vault.fd_storage.holder_client import HolderClient
from mpsguard.vault.fd_storage.storage import PREFIX, FdStorage
from mpsguard.vault.fd_storage.systemd_store import SystemdStore
from mpsguard.vault.leases import hold_all
from mpsguard.vault.quota import Quota
from mpsguard.vault.restoration import restore
from mpsguard.vault.server import VaultServer
from mpsguard.vault.vault import Vault

_PROBE: Final = f"{PREFIX}probe"


class VaultStartError(Exception):
    """The vault cannot be opened; one line says why."""


def take_bundles(fds: dict[int, str]) -> dict[str, socket.socket]:
    """Remove the vault's descriptor bundles from ``fds`` (descriptor to name), and return them by name."""
    bundles: dict[str, socket.socket] = {}
    for fd, name in list(fds.items()):
        if not name.startswith(PREFIX):
            continue
        del fds[fd]
        if name == _PROBE or name in bundles:
            os.close(fd)
            continue
        try:
            bundles[name] = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
    return bundles


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
            early_death: see `mpsguard.vault.early_deaths`.
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
        self._watch: asyncio.Task[None] | None = None
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
            self._run_directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._lock = FileLock.take(self._run_directory / "vault.lock", 0o600)
            storage = self._storage = await self._choose_storage()
            self._background_storage = BackgroundStorage(storage)
            self._vault = Vault(
                self._background_storage, self._quota, gpus=self._gpus, on_early_death=self._early_death
            )
            await self._restore(bundles, storage)
            self._server = VaultServer(self._vault, self._stats, simulated=self._simulated)
            self._server.open(socket_path(self._run_directory), listener)
        except LockHeldError as error:
            raise VaultStartError(f"{error}: another guard has this vault") from None
        except UnavailableError as error:
            raise VaultStartError(f"vault: {error}") from None
        except OSError as error:
            raise VaultStartError(f"{error.filename or self._run_directory}: {error.strerror}") from None
        finally:
            for sock in bundles.values():
                sock.close()
        self._watch = asyncio.create_task(self._background_storage.watch(self._vault.store.contents))

    async def close(self) -> None:
        """Stop; all sessions stay stored for the next guard, even if the service manager empties its store."""
        if self._watch is not None:
            await end_tasks([self._watch])
        if self._server is not None:
            await self._server.close()
        if self._background_storage is not None:
            await self._background_storage.settle()
            await self._leave_to_holder()
            if self._vault is not None:
                self._vault.close()
            await self._background_storage.close()
        if self._lock is not None:
            self._lock.close()

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
        assert self._vault is not None
        # An orderly stop may have left a holder, although the service manager stores everything from now on.
        holder = storage if isinstance(storage, HolderClient) else await HolderClient.open(self._holder_directory)
        held = await holder.list()
        kept = held if storage is holder else stored
        try:
            # A bundle that both have is the same one.
            restored = restore({**held, **stored}, kept)
        finally:
            for sock in held.values():
                sock.close()
        self.unreadable, self.lost = restored.unreadable, restored.lost
        self._vault.adopt(restored, await hold_all(restored.sessions, self._stats))
        assert self._background_storage is not None
        await self._background_storage.keep_all(
            lambda: {name: fds for name, fds in self.vault.store.contents().items() if name not in kept}
        )
        for name in restored.unused:
            # Only stored bundles: one that is not stored may be created under the same name at this moment.
            if name in kept:
                self._background_storage.forget(name)
        if holder is not storage:
            await holder.leave()
            await holder.close()

    async def _leave_to_holder(self) -> None:
        """Copy all bundles to a holder: `systemctl stop` empties the store, but keeps a holder (KillMode=process)."""
        if not isinstance(self._storage, SystemdStore) or self._vault is None or not self._vault.store.sessions:
            return
        try:
            holder = await HolderClient.open(self._holder_directory)
            beside = BackgroundStorage(holder)
            await beside.keep_all(self._vault.store.contents)
            await beside.close()
        except (UnavailableError, OSError) as error:
            # The store still has everything, which suffices for a restart.
            service_manager.notify(f"STATUS=vault: not left to a holder: {error}")

    @property
    def _holder_directory(self) -> Path:
        return self._run_directory / "holder"


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
