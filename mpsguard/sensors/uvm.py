"""The ``uvm`` sensor: whose address space a GPU fault was in, told by the driver for each client apart.

It is attached from outside, to the files that a client has open; the client notices nothing. A CUDA process opens its
address space about when it first speaks to the MPS daemon, and nothing tells of that moment. So the sensor looks at
each handshake of the client, and a few times more in the two seconds after it. It needs CAP_SYS_PTRACE over the
clients, and kcmp(2).

A fault is of an address space, and that is of the process that opened it. A process forked from it inherits the file
but not the address space; of two clients that hold one file, the earlier started is taken for its opener, whichever is
seen first. A parent that is no client cannot be seen so; CUDA opens the file close-on-exec and does not work in a
forked child, so that such a child does not get as far as to be a client.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from mpsguard.evidence import Evidence
from mpsguard.linux import foreign_fd
from mpsguard.linux.process import ProcessHandle
from mpsguard.linux.uvm_tools import NotAVaSpaceError, ToolsDriver, UvmStatusError
from mpsguard.model import ProcessKey
from mpsguard.sensors.state import SensorState
from mpsguard.sensors.uvm_space import Counts, WatchedSpace

LOOKS: Final = (0.01, 0.02, 0.05, 0.12, 0.3, 0.5, 1.0)
"""Seconds between the looks for a client's address space after a handshake, while it has none: eight in 2 s."""

MAX_SPACES_OF_A_CLIENT: Final = 4
"""CUDA has one; a client that exchanged its program by exec has two for a moment."""

MAX_SPACES: Final = 512
"""Address spaces watched at once: three descriptors and six pages each."""

_CLOSERS: Final = 4


class Attachment(msgspec.Struct, frozen=True):
    """Whether a client is watched."""

    process: ProcessKey
    attached: bool
    reason: str
    """Why it is not (yet); "" if it is."""


class _Client:
    def __init__(self, key: ProcessKey) -> None:
        self.key = key
        self.spaces: list[WatchedSpace] = []
        self.reason = ""
        self.pidfd = -1
        self.looks = 0
        self.timer: asyncio.TimerHandle | None = None

    def look_no_more(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class UvmSensor:
    """Watches the address spaces of the clients it is told of. All calls come from its event loop."""

    name: ClassVar[str] = "uvm"

    def __init__(
        self,
        emit: Callable[[Evidence], None],
        *,
        driver: ToolsDriver | None = None,
        device: Path = Path("/dev/nvidia-uvm"),
        max_spaces: int = MAX_SPACES,
    ) -> None:
        self._emit = emit
        self._driver = driver or ToolsDriver()
        self._device = device
        self._max_spaces = max_spaces
        self._clients: dict[ProcessKey, _Client] = {}
        self._counts = Counts()
        # Closing what is left of a dead client takes its address space apart in the kernel, which can take as long as
        # the GPU recovers. The event loop cannot wait for that.
        self._closers = ThreadPoolExecutor(_CLOSERS, thread_name_prefix="uvm-close")

    def client_came(self, handle: ProcessHandle) -> None:
        """Look for the client's address space, now and for the next 2 s until it is found.

        To be called at each handshake of a client, and if it is known to have called exec: what it no longer holds is
        let go of. ``handle`` may be closed afterwards.
        """
        client = self._clients.setdefault(handle.key, _Client(handle.key))
        client.look_no_more()
        client.looks = 0
        try:
            client.pidfd = os.dup(handle.fileno())
        except OSError as error:
            client.reason = f"it cannot be held: {error}"
        else:
            self._look(client)

    def client_ended(self, key: ProcessKey) -> None:
        """Read what is left of the client and let go of it, at once: until then its GPU memory stays allocated."""
        client = self._clients.pop(key, None)
        if client is not None:
            client.look_no_more()
            for space in list(client.spaces):
                self._drop(client, space)

    def attachments(self) -> list[Attachment]:
        """Every client that came and has not ended."""
        return [Attachment(c.key, bool(c.spaces), "" if c.spaces else c.reason) for c in self._clients.values()]

    def state(self) -> SensorState:
        """Absent if the device cannot be opened or the kernel cannot compare files."""
        try:
            fd = self._driver.open()
            try:
                foreign_fd.same_file(fd, fd)
            finally:
                os.close(fd)
        except OSError as error:
            return SensorState(present=False, detail=str(error))
        attached = sum(1 for client in self._clients.values() if client.spaces)
        counts = self._counts
        return SensorState(
            present=True,
            detail=f"attached to {attached} of {len(self._clients)} clients; {counts.lost} fatal faults lost, "
            f"{counts.unread} others not read, {counts.unknown} entries of unknown kind",
        )

    def close(self) -> None:
        """Let go of every client; returns when that is done."""
        for key in list(self._clients):
            self.client_ended(key)
        self._closers.shutdown()

    def _look(self, client: _Client) -> None:
        client.timer = None
        client.looks += 1
        try:
            self._bring_up_to_date(client)
        except ProcessLookupError:
            client.reason = "it ended before its address space was found"
            client.look_no_more()
            return
        except OSError as error:
            client.reason = f"its descriptors cannot be looked at: {error}"
        if client.spaces or client.looks > len(LOOKS):
            client.look_no_more()
            if not client.spaces:
                client.reason += f"; looked {client.looks} times"
        else:
            client.timer = asyncio.get_running_loop().call_later(LOOKS[client.looks - 1], self._look, client)

    def _bring_up_to_date(self, client: _Client) -> None:
        """Attach to what the client has opened, let go of what it has closed."""
        client.reason = f"it has not opened {self._device}"
        held = foreign_fd.copies_of_device(client.pidfd, client.key.pid, self._device)
        if held.fds:
            client.reason = f"none of its files of {self._device} is an address space"
        if not held.complete:
            client.reason += ", as far as was looked: it has too many files open"
        try:
            for space in list(client.spaces):
                if held.complete and not any(space.is_of(file) for file in held.fds):
                    self._drop(client, space)
            for file in held.fds:
                self._attach(client, file)
        finally:
            for file in held.fds:
                os.close(file)

    def _attach(self, client: _Client, file: int) -> None:
        for holder in self._clients.values():
            for space in holder.spaces:
                if space.is_of(file):
                    self._settle(client, holder, space)
                    return
        if len(client.spaces) >= MAX_SPACES_OF_A_CLIENT:
            return
        if sum(len(other.spaces) for other in self._clients.values()) >= self._max_spaces:
            client.reason = f"{self._max_spaces} address spaces are watched already"
            return
        try:
            space = WatchedSpace.open(self._driver, file, client.key)
        except NotAVaSpaceError:
            return
        except (UvmStatusError, OSError) as error:
            client.reason = str(error)
        else:
            client.spaces.append(space)
            space.start(self._emit, self._counts, self._broke)

    def _settle(self, client: _Client, holder: _Client, space: WatchedSpace) -> None:
        """Give an address space that two clients hold to the one that started earlier: it opened it."""
        if holder is client:
            return
        # Within one clock tick the lower pid is the earlier one, but for a wrap of the numbers.
        older, younger = sorted((holder, client), key=lambda one: (one.key.start_ticks, one.key.pid))
        younger.reason = f"the address space it holds is that of process {older.key.pid}"
        if older is client:
            holder.spaces.remove(space)
            client.spaces.append(space)
            space.owner = client.key

    def _broke(self, space: WatchedSpace) -> None:
        client = self._clients[space.owner]
        self._drop(client, space)
        client.reason = "the driver gave its event queue up"

    def _drop(self, client: _Client, space: WatchedSpace) -> None:
        client.spaces.remove(space)
        space.stop()
        self._closers.submit(space.close)
