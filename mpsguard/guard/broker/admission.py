"""Admission of a client to a lane: reads the client's /proc entries, once it has its socket if none needs them before.

Until then the reader's thread would take the interpreter's lock from what hands the client over.
"""

import asyncio
import time

from mpsguard.guard.broker import client_table
from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.lanes.levers import NONE
from mpsguard.linux.identity import Credentials
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.process_reader import UNKNOWN, Told


class Admission:
    """Owns the handle of a client's process until the client is in the client table or the admission is closed."""

    def __init__(self, known: ClientTable, domain: str, handle: ProcessHandle, sender: Credentials) -> None:
        self._clients = known
        self._domain = domain
        self._handle = handle
        self.sender = sender
        self.key = handle.key
        """The process' key when it connected; it may execute another program meanwhile."""
        self.service_class: str | None = None
        """The class that a new client was given."""
        self.levers = NONE
        """What is set at the server for a new client; `NONE` again if it could not be."""
        self._reading: asyncio.Task[Told] | None = None
        self._entered = False
        self._connected_at: float | None = None
        """When it had its socket: it works from then on, however long its entries take to be read."""
        self.is_new = known.get(handle.key) is None
        if self.is_new:
            known.entering[self.key] = sender.user

    async def program(self) -> str | None:
        """Return the program to which a new client claims to belong."""
        return client_table.program_of((await self.entries()).environment) if self.is_new else None

    async def entries(self) -> Told:
        """Return the /proc entries of a new client, as far as they could be read in time."""
        self._read()
        return UNKNOWN if self._reading is None else await self._reading

    def enter(self, lane: str) -> None:
        """Enter the client, which is connected to ``lane``, into the client table, as soon as its entries are read."""
        self._entered = True
        self._connected_at = time.time()
        self._read()
        if self._reading is None:
            self._enter(lane, UNKNOWN)
        elif self._reading.done():
            self._enter(lane, _entries_of(self._reading))
        else:
            # The reader's deadline bounds this, regardless of the client.
            self._reading.add_done_callback(lambda done: self._enter(lane, _entries_of(done)))
            self._clients.handed_over(self.key, self._reading, lane)

    def close(self) -> None:
        """Close the handle, unless the client is entered."""
        if self._entered:
            return
        self._clients.left(self.key)
        if self._reading is not None:
            self._reading.cancel()
        self._handle.close()

    def _read(self) -> None:
        """Begin to read a new client's /proc entries, unless that has begun."""
        if self.is_new and self._reading is None:
            self._reading = asyncio.create_task(self._clients.read(self.key, self.sender.user))

    def _enter(self, lane: str, entries: Told) -> None:
        # It may have executed another program since its introduction.
        self._handle.key = self._clients.key_now(self._handle.key)
        client = client_table.identify(
            self._handle,
            self.sender,
            entries,
            domain=self._domain,
            lane=lane,
            service_class=self.service_class,
            levers=self.levers,
            connected_at=self._connected_at,
        )
        self._clients.add(client, self._handle)
        self._clients.left(self.key)


def _entries_of(reading: asyncio.Task[Told]) -> Told:
    return UNKNOWN if reading.cancelled() or reading.exception() is not None else reading.result()
