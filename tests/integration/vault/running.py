"""A vault to talk to: as a process of its own with a holder, or on a thread of the test with a storage beside it."""

import asyncio
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from fault_injection.holders import holders
from mpsguard.client import Chunk, LeaseRole, Session
from mpsguard.linux.descriptors.fd_bundle import FdBundle
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.vault.server.fd_storage.background import BackgroundStorage
from mpsguard.vault.server.leases import hold_all
from mpsguard.vault.server.quota import Quota
from mpsguard.vault.server.restoration import restore
from mpsguard.vault.server.server import VaultServer
from mpsguard.vault.server.vault import Vault
from tests.harness.waiting import PATIENCE

REPOSITORY = Path(__file__).resolve().parents[3]

T = TypeVar("T")


def memory(index: int, size: int = 4096) -> Chunk:
    """Return a chunk of memory with content derived from its index."""
    fd = os.memfd_create(f"chunk-{index}", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    os.pwrite(fd, content(index, size), 0)
    return Chunk(fd, size)


def content(index: int, size: int = 4096) -> bytes:
    return hashlib.shake_128(str(index).encode()).digest(size)


def close_chunks(chunks: Sequence[Chunk]) -> None:
    for chunk in chunks:
        os.close(chunk.fd)


def close_fds(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


class LocalStorage:
    """A storage that outlives the vaults of a test. It really keeps the bundles, in this process."""

    def __init__(self) -> None:
        self.bundles: dict[str, FdBundle] = {}

    async def keep(self, name: str, bundle: FdBundle) -> None:
        self.drop(name)
        self.bundles[name] = bundle

    async def forget(self, name: str) -> None:
        self.drop(name)

    async def lost(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Goes on keeping."""

    def drop(self, name: str) -> None:
        old = self.bundles.pop(name, None)
        if old is not None:
            old.kept.close()
            old.receipt.close()

    def empty(self) -> None:
        for name in list(self.bundles):
            self.drop(name)


class ThreadedVault:
    """A vault and its server on an event loop of their own, in this process: whatever they leak can be counted."""

    def __init__(self, quota: Quota | None = None, storage: LocalStorage | None = None, **options: Any) -> None:
        # Short: a socket's path has at most 107 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="mgv-"))
        self.socket = str(self.root / "vault.sock")
        self.storage = storage or LocalStorage()
        self._quota = quota or Quota()
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        shutil.rmtree(self.root)

    def run(self, work: Awaitable[T]) -> T:
        """Have the vault's loop do something."""

        async def done() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(PATIENCE)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the vault's loop."""
        answer: Future[T] = Future()

        def call() -> None:
            try:
                answer.set_result(function())
            except BaseException as error:
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(call)
        return answer.result(PATIENCE)

    def settle(self) -> None:
        self.run(self.background.settle())

    def session(self, name: str = "s", **options: Any) -> Session:
        return Session(name, socket=self.socket, **options)

    def standby(self, name: str = "s", **options: Any) -> Session:
        return Session(name, socket=self.socket, role=LeaseRole.STANDBY, **options)

    async def _open(self) -> None:
        self.background = BackgroundStorage(self.storage)
        simulated = self._options.pop("simulated", False)
        self.vault = Vault(self.background, self._quota, **self._options)
        restored = restore({name: bundle.kept for name, bundle in self.storage.bundles.items()})
        self.stats = StatReader()
        self.vault.adopt(restored, await hold_all(restored.sessions, self.stats))
        for name in restored.unused:
            self.background.forget(name)
        self.restored = restored
        self.server = VaultServer(self.vault, self.stats, simulated=simulated)
        self.server.open(Path(self.socket))

    async def _close(self) -> None:
        await self.server.close()
        await self.background.settle()
        self.vault.close()
        self.stats.close()
        await self.background.close()


class VaultProcess:
    """A vault as a process of its own, without a service manager: its holder keeps what it has."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="mgv-"))
        self.run_directory = self.root / "run"
        self.socket = str(self.run_directory / "vault.sock")
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()
        for pid in self.holders():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.root)

    def start(self) -> int:
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        environment["MPSGUARD_VAULT_SIMULATED"] = "1"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mpsguard.guard.daemon.vault_service", str(self.run_directory)],
            env=environment,
            cwd=REPOSITORY,
        )
        return self.process.pid

    @contextmanager
    def killed_again_and_again(
        self, times: int, chance: random.Random, worked: threading.Semaphore
    ) -> Iterator[threading.Event]:
        """SIGKILL it at random moments and start it again at once, as a service manager would; the event is the end.

        Between two of them ``worked`` was released at least once.
        """
        over, left = threading.Event(), threading.Event()

        def kill_and_start() -> None:
            for _ in range(times):
                if not worked.acquire(timeout=PATIENCE) or left.is_set():
                    return
                time.sleep(chance.uniform(0.0, 0.15))
                self.kill()
                self.start()
            over.set()

        thread = threading.Thread(target=kill_and_start)
        thread.start()
        try:
            yield over
        finally:
            left.set()
            worked.release()
            thread.join()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self, within: float = PATIENCE) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(within)

    def holders(self) -> list[int]:
        """Pids of the holder processes of this vault."""
        return holders(self.run_directory)
