"""One connection of a client on its way to a lane, and what is read of the client meanwhile."""

import asyncio

from mpsguard.broker import client_table
from mpsguard.broker.client_table import ClientTable
from mpsguard.linux.process import ProcessHandle
from mpsguard.linux.process_reader import UNKNOWN, Told
from mpsguard.model import Credentials


class Admission:
    """Owns the handle of the client's process until the client is entered or the admission is closed."""

    def __init__(self, known: ClientTable, domain: str, handle: ProcessHandle, sender: Credentials) -> None:
        self._clients = known
        self._domain = domain
        self._handle = handle
        self._sender = sender
        self._key = handle.key
        """Under which the process came; it may execute another program meanwhile."""
        self._reading: asyncio.Task[Told] | None = None
        self._entered = False
        self._is_new = known.get(handle.key) is None
        if self._is_new:
            known.entering[self._key] = sender.uid

    def read(self) -> None:
        """Begin to read of a new client what /proc says, unless that has begun."""
        if self._is_new and self._reading is None:
            self._reading = asyncio.create_task(self._clients.read(self._key, self._sender.uid))

    async def program(self) -> str | None:
        """Return the program to which a new client says that it belongs."""
        self.read()
        return None if self._reading is None else client_table.program_of((await self._reading).environment)

    def enter(self, lane: str) -> None:
        """Enter the client, which has its connection to ``lane``, now or as soon as what is read of it is there."""
        self._entered = True
        if self._reading is None:
            self._enter(lane, UNKNOWN)
        elif self._reading.done():
            self._enter(lane, _told(self._reading))
        else:
            # Within the reader's deadline, whatever the client does.
            self._reading.add_done_callback(lambda done: self._enter(lane, _told(done)))

    def close(self) -> None:
        """Give the handle back, unless the client is entered."""
        if self._entered:
            return
        self._clients.entering.pop(self._key, None)
        if self._reading is not None:
            self._reading.cancel()
        self._handle.close()

    def _enter(self, lane: str, told: Told) -> None:
        # It may have executed another program since it said who it is.
        self._handle.key = self._clients.key_now(self._handle.key)
        owner = (self._sender.uid, self._sender.gid)
        client = client_table.identify(self._handle, owner, told, domain=self._domain, lane=lane)
        self._clients.add(client, self._handle)
        self._clients.entering.pop(self._key, None)


def _told(reading: asyncio.Task[Told]) -> Told:
    return UNKNOWN if reading.cancelled() or reading.exception() is not None else reading.result()
