"""Work that goes on: what changes between two of its steps, or fails once, does not end it."""

import asyncio
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mpsguard.guard.broker.lowered_shares import ClassCeilings
from mpsguard.guard.config import Objective
from mpsguard.guard.incidents.objective_loop import ObjectiveLoop
from mpsguard.guard.metrics.registry import Metrics
from mpsguard.linux.descriptors import fd_bundle
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.vault.server.fd_storage.background import BackgroundStorage
from mpsguard.vault.server.fd_storage.systemd_store import SystemdStore
from mpsguard.vault.server.leases import hold_all
from mpsguard.vault.wire import latency_counts
from tests.harness.waiting import until
from tests.integration.transitions.bench import KEY, Bench, Stage, memory
from tests.integration.vault.running import LocalStorage


def run(stage: Stage, scenario: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), stage.bench() as bench:
            await scenario(bench)

    asyncio.run(main())


def test_a_latency_region_that_is_released_during_the_measurement_ends_no_objective(stage: Stage) -> None:
    async def scenario(bench: Bench) -> None:
        writer = await bench.attach(0)
        bench.client(0, lane=0)
        layout = latency_counts.LAYOUT
        reservation = bench.vault.regions.reserve(KEY, writer.token, latency_counts.REGION, layout, b"")
        await bench.vault.regions.register(reservation, memory(1, latency_counts.SIZE))
        objective = Objective(service_class="batch", p99_ms=1.0, batch="batch")
        loop = ObjectiveLoop(bench.view, objective, ClassCeilings(), bench.events, Metrics())
        measuring = loop._measure(bench.vault)
        # Up to where other tasks have their turn.
        assert measuring.send(None) is None
        bench.vault.lifetimes.release(KEY, writer.token, latency_counts.REGION)
        with pytest.raises(StopIteration) as end:
            measuring.send(None)
        assert end.value.value.requests == 0

    run(stage, scenario)


class Losing(LocalStorage):
    """A storage that loses everything when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.losing = asyncio.Event()

    async def lost(self) -> None:
        await self.losing.wait()
        self.losing.clear()
        self.empty()


def test_a_storage_that_is_lost_while_no_descriptor_is_left_is_refilled_later() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def main() -> None:
        storage = Losing()
        background = BackgroundStorage(storage)
        fds = memory(1)
        tries = 0

        def contents() -> dict[str, tuple[int, ...]]:
            nonlocal tries
            tries += 1
            # A state buffer may be made here, which takes a descriptor.
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard) if tries == 1 else (soft, hard))
            os.close(os.dup(fds[0]))
            return {"mgv-r1": fds}

        watching = asyncio.create_task(background.watch(contents))
        try:
            await asyncio.sleep(0)
            storage.losing.set()
            await until(lambda: watching.done() or "mgv-r1" in storage.bundles)
            assert not watching.done(), watching
            assert background.unkept == 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            watching.cancel()
            await asyncio.wait({watching})
            await background.close()
            storage.empty()
            os.close(fds[0])

    asyncio.run(main())


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A service manager's socket, of which the queue is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filling:
            filling.connect(str(tmp_path / "notify"))
            filling.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    filling.send(b"")
        yield sock


def test_a_bundle_is_not_forgotten_before_it_was_kept(manager: socket.socket) -> None:
    """The service manager is busy, the keeping is given up, and what was to be kept is to be forgotten."""
    got: list[bytes] = []

    def read() -> None:
        while b"FDSTOREREMOVE=1" not in b"".join(got):
            data, fds, _, _ = socket.recv_fds(manager, 4096, 4)
            for fd in fds:
                os.close(fd)
            if data:
                got.append(data)

    async def main() -> None:
        store = SystemdStore()
        fd = memory(1)
        keeping = asyncio.create_task(store.keep("mgv-r1", fd_bundle.pack(b"mgv-r1", fd)))
        os.close(fd[0])
        await until(lambda: any("asyncio_" in each.name for each in threading.enumerate()))
        keeping.cancel()
        forgetting = asyncio.create_task(store.forget("mgv-r1"))
        for _ in range(10):
            await asyncio.sleep(0)
        # Its message still waits for room in the queue.
        ended_early = keeping.done()
        reader = threading.Thread(target=read)
        reader.start()
        await asyncio.wait({keeping, forgetting})
        await asyncio.to_thread(reader.join)
        assert keeping.cancelled()
        assert not ended_early
        words = [each.partition(b"\n")[0] for each in got]
        assert words.index(b"FDSTORE=1") < words.index(b"FDSTOREREMOVE=1")

    asyncio.run(main())


def test_a_lease_is_not_ended_for_want_of_a_descriptor(stage: Stage) -> None:
    """The next guard cannot look at its process now: that is no evidence that the process has ended."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def scenario(bench: Bench) -> None:
        await bench.attach(0)
        session, fds = bench.vault.store.sessions[KEY], bench.vault.store.session_fds[KEY]
        stats = StatReader()
        stats.start()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                await hold_all([(session, fds)], stats)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        held = await hold_all([(session, fds)], stats)
        assert session.writer is not None
        assert set(held) == {session.writer.token}
        for handle in held.values():
            handle.close()
        stats.close()

    run(stage, scenario)
