"""Zones: accesses outside an allocation that a zone absorbed, told from ordinary work in managed memory.

A zone is managed memory (docs/guides/preload.md): an access there is a fault that the driver serves, and the `uvm`
sensor sees it as one that is not fatal. Whether it was a zone, and of which region, the client's own table tells, a
memory file that is opened anew. The table is the client's word about itself and about no other process.
"""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ClassVar, Final, Self

from mpsguard.guard.evidence import Evidence, Source, Trust, UvmFault, ZoneHit
from mpsguard.guard.model import Client
from mpsguard.guard.sensors.sensor import CLOSE_WITHIN, Sensor, SensorSetup, SensorState, register
from mpsguard.linux.descriptors import foreign_fd
from mpsguard.linux.identity import ROOT, ProcessKey
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.side_threads import SharedThreads
from mpsguard.preload import zone_table
from mpsguard.preload.zone_table import LocatedAddress, Part, TableError

AGAIN: Final = 60.0
"""Seconds after which a further access in the same region's zone is told again."""
_NO_TABLE: Final = 10.0
"""Seconds for which a client that had no table is not asked again: one that uses managed memory faults all the time."""
_READERS: Final = 64
"""Threads, of which a user has one: a process that does not end its execve(2) holds it up (`stat_reader`)."""


class _Client:
    def __init__(self, pidfd: int, uid: int) -> None:
        self.pidfd = pidfd
        self.uid = uid
        self.told: dict[tuple[int, int], float] = {}
        """When a region was told of, by its number and its first address: each table counts from 1."""
        self.no_table_at = -_NO_TABLE
        self.looking = False


@register
class ZoneSensor(Sensor):
    """Owns a pidfd of each client, and threads that look at their tables. Made inside a running event loop."""

    name: ClassVar[str] = "zones"

    def __init__(self, emit: Callable[[Evidence], None]) -> None:
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._clients: dict[ProcessKey, _Client] = {}
        self._readers = SharedThreads[int]("zones", _READERS, 1, privileged=(ROOT,))
        self._hits = 0

    def watch(self, handle: ProcessHandle, uid: int) -> None:
        """Watch a client of ``uid``, which may have zones. ``handle`` may be closed afterwards."""
        if handle.key not in self._clients:
            with suppress(OSError):  # without it, its zones are ordinary memory to us
                self._clients[handle.key] = _Client(os.dup(handle.fileno()), uid)

    def unwatch(self, key: ProcessKey) -> None:
        """Let go of a client that has ended."""
        client = self._clients.pop(key, None)
        if client is not None:
            os.close(client.pidfd)

    def fault(self, evidence: Evidence) -> None:
        """A fault that was not fatal: was it in a zone?"""
        what, key = evidence.what, evidence.process
        client = self._clients.get(key) if key is not None else None
        if not isinstance(what, UvmFault) or key is None or client is None or client.looking:
            return
        if time.monotonic() - client.no_table_at < _NO_TABLE:
            return
        try:
            pidfd = os.dup(client.pidfd)
        except OSError:
            return  # no descriptor left: the next fault is looked at
        client.looking = True
        self._readers.run(client.uid, partial(self._look, key, pidfd, evidence))

    @classmethod
    def open(cls, setup: SensorSetup) -> Self:
        """See `Sensor`."""
        return cls(setup.emit)

    def client_came(self, client: Client, handle: ProcessHandle) -> None:
        """See `Sensor`."""
        self.watch(handle, client.user)

    def client_ended(self, client: Client) -> None:
        """See `Sensor`."""
        self.unwatch(client.process)

    def observe(self, evidence: Evidence) -> None:
        """Look where a fault was that was not fatal: perhaps in a zone."""
        if isinstance(evidence.what, UvmFault) and not evidence.what.fatal:
            self.fault(evidence)

    def state(self) -> SensorState:
        """Always there: whether a client has zones is its own choice."""
        return SensorState(True, f"{self._hits} accesses in zones")

    def close(self) -> None:
        """Give everything back; safe to call twice."""
        self._readers.close(CLOSE_WITHIN)
        for key in list(self._clients):
            self.unwatch(key)

    def _look(self, key: ProcessKey, pidfd: int, evidence: Evidence) -> None:
        """On a thread beside the loop."""
        assert isinstance(evidence.what, UvmFault)
        place: LocatedAddress | None = None
        found = False
        files: list[int] = []
        try:
            files = foreign_fd.memory_files(pidfd, key.pid, zone_table.LINK, zone_table.MOST_OF_A_PROCESS)
        except OSError:
            pass
        finally:
            os.close(pidfd)
        for file in files:
            # OSError, TableError: it has the name of a table alone.
            with suppress(OSError, TableError):
                here = zone_table.locate(file, evidence.what.address)
                place = place or here
                found = True
            os.close(file)
        with suppress(RuntimeError):  # the loop has ended, and wants no more
            self._loop.call_soon_threadsafe(self._looked, key, evidence, place, found)

    def _looked(self, key: ProcessKey, evidence: Evidence, place: LocatedAddress | None, found: bool) -> None:
        client = self._clients.get(key)
        if client is None:
            return
        client.looking = False
        now = time.monotonic()
        if not found:
            client.no_table_at = now
        if place is None or place.part is Part.MEMORY:
            return
        region = place.region.number
        told = (region, place.region.start)
        if now - client.told.get(told, -AGAIN) < AGAIN:
            return
        client.told[told] = now
        self._hits += 1
        assert isinstance(evidence.what, UvmFault)
        self._emit(
            Evidence(
                source=Source.UVM,
                observed_at=now,
                happened_at=evidence.happened_at,
                uncertainty=evidence.uncertainty,
                gpu=evidence.gpu,
                process=key,
                trust=Trust.PROOF,
                what=ZoneHit(
                    address=evidence.what.address,
                    access=evidence.what.access,
                    region=region,
                    part=place.part.value,
                    beyond=place.beyond,
                    size=place.region.size,
                ),
            )
        )
