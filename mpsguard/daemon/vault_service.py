"""The vault as part of the guard, or alone: takes over what was kept, serves, and leaves it to the next guard.

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

from mpsguard.linux import fd_bundle, service_manager
from mpsguard.linux.fd_closer import close_all
from mpsguard.linux.file_lock import FileLock, LockHeldError
from mpsguard.tasks import end_tasks
from mpsguard.vault.address import socket_path
from mpsguard.vault.early_deaths import EarlyDeath
from mpsguard.vault.errors import UnavailableError
from mpsguard.vault.fd_storage.background import BackgroundStorage
from mpsguard.vault.fd_storage.holder_client import HolderClient
from mpsguard.vault.fd_storage.storage import PREFIX, FdStorage
from mpsguard.vault.fd_storage.systemd_store import SystemdStore
from mpsguard.vault.quota import Quota
from mpsguard.vault.restoration import restore
from mpsguard.vault.server import Server
from mpsguard.vault.vault import Vault

_PROBE: Final = f"{PREFIX}probe"


class VaultStartError(Exception):
    """The vault cannot be opened; one line says why."""


def take_parcels(fds: dict[int, str]) -> dict[str, socket.socket]:
    """Take the vault's parcels out of what the service manager has handed over (descriptor to name)."""
    parcels: dict[str, socket.socket] = {}
    for fd, name in list(fds.items()):
        if not name.startswith(PREFIX):
            continue
        del fds[fd]
        if name == _PROBE or name in parcels:
            os.close(fd)
            continue
        try:
            parcels[name] = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
    return parcels


class VaultService:
    """Owns the vault, its keeper and its server."""

    def __init__(
        self,
        run_directory: Path,
        quota: Quota,
        *,
        gpus: frozenset[str] | None = None,
        simulated: bool = False,
        early_death: Callable[[EarlyDeath], None] = lambda _: None,
    ) -> None:
        """``gpus``: UUIDs that regions may lie on; None: any. ``simulated``: memfds may stand for GPU memory.

        ``early_death``: see `mpsguard.vault.early_deaths`.
        """
        self._early_death = early_death
        self._run_directory = run_directory
        self._quota = quota
        self._gpus = gpus
        self._simulated = simulated
        self._lock: FileLock | None = None
        self._keeper: FdStorage | None = None
        self._keeping: BackgroundStorage | None = None
        self._server: Server | None = None
        self._watch: asyncio.Task[None] | None = None
        self._vault: Vault | None = None
        self.unreadable: list[str] = []
        """Parcels that this version cannot read and leaves alone."""
        self.lost: list[str] = []
        """Regions that were written down, and not kept."""

    @property
    def is_open(self) -> bool:
        """Whether there is a vault."""
        return self._vault is not None

    @property
    def vault(self) -> Vault:
        """The vault, once it is open."""
        assert self._vault is not None, "not open"
        return self._vault

    async def open(self, parcels: dict[str, socket.socket], listener: socket.socket | None = None) -> None:
        """Take over ``parcels`` (from `take_parcels`; ours from now on) and what a holder has, and serve.

        ``listener``: a socket that the service manager holds for us. VaultStartError, with nothing changed.
        """
        try:
            self._run_directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._lock = FileLock.take(self._run_directory / "vault.lock", 0o600)
            keeper = self._keeper = await self._choose_keeper()
            self._keeping = BackgroundStorage(keeper)
            self._vault = Vault(self._keeping, self._quota, gpus=self._gpus, on_early_death=self._early_death)
            await self._take_over(parcels, keeper)
            self._server = Server(self._vault, simulated=self._simulated)
            self._server.open(socket_path(self._run_directory), listener)
        except LockHeldError as error:
            raise VaultStartError(f"{error}: another guard has this vault") from None
        except UnavailableError as error:
            raise VaultStartError(f"vault: {error}") from None
        except OSError as error:
            raise VaultStartError(f"{error.filename or self._run_directory}: {error.strerror}") from None
        finally:
            for sock in parcels.values():
                sock.close()
        self._watch = asyncio.create_task(self._keeping.watch(self._vault.store.contents))

    async def close(self) -> None:
        """End in order; everything waits for the next guard, also if the service manager empties its store."""
        if self._watch is not None:
            await end_tasks([self._watch])
        if self._server is not None:
            await self._server.close()
        if self._keeping is not None:
            await self._keeping.settle()
            await self._leave_to_holder()
            if self._vault is not None:
                self._vault.close()
            await self._keeping.close()
        if self._lock is not None:
            self._lock.close()

    async def _choose_keeper(self) -> FdStorage:
        store = SystemdStore()
        if "NOTIFY_SOCKET" in os.environ:
            try:
                await store.keep(_PROBE, fd_bundle.pack(_PROBE.encode(), ()))
            except UnavailableError:
                # A service without FileDescriptorStoreMax=, or another kind of manager.
                pass
            else:
                await store.forget(_PROBE)
                return store
        return await HolderClient.open(self._holder_directory)

    async def _take_over(self, stored: Mapping[str, socket.socket], keeper: FdStorage) -> None:
        assert self._vault is not None
        # One may be left from an orderly end, although the service manager keeps everything from now on.
        holder = keeper if isinstance(keeper, HolderClient) else await HolderClient.open(self._holder_directory)
        held = await holder.list()
        kept = held if keeper is holder else stored
        try:
            # Where both have a parcel it is the same one.
            restored = restore({**held, **stored}, kept)
        finally:
            for sock in held.values():
                sock.close()
        self.unreadable, self.lost = restored.unreadable, restored.lost
        self._vault.adopt(restored.sessions, restored.last_id, len(restored.lost))
        assert self._keeping is not None
        await self._keeping.keep_all(
            lambda: {name: fds for name, fds in self.vault.store.contents().items() if name not in kept}
        )
        for name in restored.unused:
            # Only those: what is not there may be made, under the same name, in this moment.
            if name in kept:
                self._keeping.forget(name)
        if holder is not keeper:
            await holder.leave()
            await holder.close()

    async def _leave_to_holder(self) -> None:
        """`systemctl stop` empties the store; a holder is left alone (KillMode=process)."""
        if not isinstance(self._keeper, SystemdStore) or self._vault is None or not self._vault.store.sessions:
            return
        try:
            holder = await HolderClient.open(self._holder_directory)
            beside = BackgroundStorage(holder)
            await beside.keep_all(self._vault.store.contents)
            await beside.close()
        except (UnavailableError, OSError) as error:
            # The store still has everything, which is enough for a restart.
            service_manager.notify(f"STATUS=vault: not left to a holder: {error}")

    @property
    def _holder_directory(self) -> Path:
        return self._run_directory / "holder"


async def _serve_alone(run_directory: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    given = service_manager.take_listen_fds()
    parcels = take_parcels(given)
    close_all(given)
    service = VaultService(run_directory, Quota(), simulated="MPSGUARD_VAULT_SIMULATED" in os.environ)
    try:
        await service.open(parcels)
        service_manager.notify("READY=1")
        await stop.wait()
        service_manager.notify("STOPPING=1")
    finally:
        await service.close()


if __name__ == "__main__":
    try:
        asyncio.run(_serve_alone(Path(sys.argv[1])))
    except VaultStartError as error:
        sys.exit(f"mpsguard vault: {error}")
