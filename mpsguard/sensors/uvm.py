"""The ``uvm`` sensor: whose address space a GPU fault was in, told by the driver for each client apart.

It is attached from outside, to the files that a client has open; the client notices nothing. A CUDA process opens its
address space about when it first speaks to the MPS daemon, and nothing tells of that moment. So the sensor looks at
each handshake of the client, and a few times more in the two seconds after it, and then at which GPUs the client has
registered in it. It needs CAP_SYS_PTRACE over the clients, and kcmp(2).

What was found is kept until the client ends, also if the client closes it: a kernel of it may still run there, and one
that outlives its address space ends every client of its server. Executing another program closes it, and is an end.

A fault is of an address space, and that is of the process that opened it. A process forked from it inherits the file
but not the address space; of two clients that hold one file, the earlier started is taken for its opener, whichever is
seen first. A parent that is no client cannot be seen so; CUDA opens the file close-on-exec and does not work in a
forked child, so that such a child does not get as far as to be a client.

Looking, attaching and letting go all enter the driver, which may take its time: threads do it (`uvm_look`), the event
loop takes what they found. A look of which the driver makes nothing holds up one thread, and is told.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from mpsguard.evidence import Evidence
from mpsguard.linux import foreign_fd
from mpsguard.linux.process import ProcessHandle
from mpsguard.linux.side_threads import SideThreads
from mpsguard.linux.uvm_processors import PROC_GPUS, GpuAddresses
from mpsguard.linux.uvm_tools import ToolsDriver
from mpsguard.model import ProcessKey
from mpsguard.sensors.state import SensorState
from mpsguard.sensors.uvm_look import MAX_SPACES_OF_A_CLIENT, Found, Looker, Order
from mpsguard.sensors.uvm_space import Counts, WatchedSpace

LOOKS: Final = (0.01, 0.02, 0.05, 0.12, 0.3, 0.5, 1.0)
"""Seconds between the looks at a client after a handshake: eight in 2 s, for its address space, then for its GPUs."""

MAX_SPACES: Final = 512
"""Address spaces watched at once: three descriptors and six pages each."""

SLOW: Final = 2.0
"""Seconds after which a look, which takes some milliseconds, is said to be held up."""

CLOSE_WITHIN: Final = 5.0
"""Seconds that `UvmSensor.close` gives the threads."""

_LOOKERS: Final = 4
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
        self.anchors: tuple[int, ...] = ()
        """See `Found.anchors`."""
        self.reason = "it has not been looked at yet"
        self.pidfd = -1
        self.looks = 0
        self.looking_since: float | None = None
        self.look_again = False
        """It has come again while it was being looked at."""
        self.let_be = False
        """There is nothing to look for until it comes again."""
        self.timer: asyncio.TimerHandle | None = None

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def close(self) -> None:
        self.cancel_timer()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class UvmSensor:
    """Watches the address spaces of the clients it is told of. All calls come from its event loop; none waits."""

    name: ClassVar[str] = "uvm"

    def __init__(
        self,
        emit: Callable[[Evidence], None],
        *,
        driver: ToolsDriver | None = None,
        device: Path = Path("/dev/nvidia-uvm"),
        gpus: Path = PROC_GPUS,
        max_spaces: int = MAX_SPACES,
    ) -> None:
        """Made inside a running event loop."""
        self._emit = emit
        self._looker = Looker(driver or ToolsDriver(), device, GpuAddresses(gpus), self._close_files)
        self._max_spaces = max_spaces
        self._clients: dict[ProcessKey, _Client] = {}
        self._held: dict[ProcessKey, _Client] = {}
        self._counts = Counts()
        self._loop = asyncio.get_running_loop()
        self._found: deque[Callable[[], None]] = deque()
        """What threads have found and the loop has yet to take."""
        self._lookers = SideThreads("uvm-look", _LOOKERS)
        # Closing what is left of a dead client takes its address space apart in the kernel, which can take as long as
        # the GPU recovers: no look shall wait for that.
        self._closers = SideThreads("uvm-close", _CLOSERS)
        self._absence = "it has not been tried yet"
        self._trying_since: float | None = None
        self._try()

    def client_came(self, handle: ProcessHandle) -> None:
        """Look for the client's address space, now and for the next 2 s until it is found.

        To be called at each handshake of a client. ``handle`` may be closed afterwards.
        """
        client = self._clients.setdefault(handle.key, _Client(handle.key))
        if client.pidfd < 0:
            try:
                client.pidfd = os.dup(handle.fileno())
            except OSError as error:
                client.reason = f"it cannot be held: {error}"
                return
        client.cancel_timer()
        client.looks = 0
        client.let_be = False
        self._look(client)

    def client_ended(self, key: ProcessKey) -> None:
        """Read what is left of the client and let go of it, at once: until then its GPU memory stays allocated."""
        client = self._forget(key)
        if client is not None:
            self._let_go(client)

    def hold(self, key: ProcessKey) -> tuple[int, ...]:
        """In the place of `client_ended`: go on watching an ended client's address spaces, which keeps them alive.

        Descriptors of their files, which stay this sensor's, for whoever else is to hold them; () if there is none.
        """
        client = self._forget(key)
        if client is None:
            return ()
        if not client.spaces:
            self._let_go(client)
            return ()
        self._held[key] = client
        return (*(space.file for space in client.spaces), *client.anchors)

    def release(self, key: ProcessKey) -> None:
        """Let go of what is held of an ended client."""
        client = self._held.pop(key, None)
        if client is not None:
            self._let_go(client)

    def attachments(self) -> list[Attachment]:
        """Every client that came and has not ended."""
        return [Attachment(c.key, bool(c.spaces), "" if c.spaces else self._reason(c)) for c in self._clients.values()]

    def state(self) -> SensorState:
        """Absent if the device cannot be opened or the kernel cannot compare files.

        That was so when it was last tried, which is done at the start, and again, for the next time, by asking.
        """
        absence = self._absence
        if self._trying_since is not None and (since := time.monotonic() - self._trying_since) > SLOW:
            absence = f"the driver has not answered for {since:.0f} s"
        self._try()
        if absence:
            return SensorState(present=False, detail=absence)
        attached = sum(1 for client in self._clients.values() if client.spaces)
        held_up = sum(1 for client in self._clients.values() if _held_up(client))
        counts = self._counts
        return SensorState(
            present=True,
            detail=f"attached to {attached} of {len(self._clients)} clients; {counts.lost} fatal faults lost, "
            f"{counts.unread} others not read, {counts.unknown} entries of unknown kind"
            + (f"; {held_up} looks held up by the driver" if held_up else ""),
        )

    def close(self) -> None:
        """Let go of every client; waits until that is done, or CLOSE_WITHIN for what the driver holds up."""
        for key in list(self._clients):
            self.client_ended(key)
        for key in list(self._held):
            self.release(key)
        self._lookers.close(CLOSE_WITHIN)
        self._take_found()
        self._closers.close(CLOSE_WITHIN)

    def _let_go(self, client: _Client) -> None:
        for space in list(client.spaces):
            self._drop(client, space)
        self._close_files(list(client.anchors))
        client.anchors = ()

    def _forget(self, key: ProcessKey) -> _Client | None:
        """Look at a client no more."""
        client = self._clients.pop(key, None)
        if client is not None:
            client.close()
        return client

    def _look(self, client: _Client) -> None:
        client.timer = None
        if client.looking_since is not None:
            client.look_again = True
            return
        client.looks += 1
        if client.looks > 1 and client.spaces and client.anchors:
            client.looking_since = time.monotonic()
            self._lookers.run(partial(self._read_gpus_aside, client, tuple(client.spaces)))
            return
        try:
            pidfd = os.dup(client.pidfd)
        except OSError as error:
            client.reason = f"it cannot be held: {error}"
            self._look_later(client)
            return
        order = Order(
            key=client.key,
            pidfd=pidfd,
            own=tuple(client.spaces),
            others=tuple(space for other in self._clients.values() if other is not client for space in other.spaces),
            max_spaces=self._max_spaces,
        )
        client.looking_since = time.monotonic()
        self._lookers.run(partial(self._look_aside, client, order))

    def _look_aside(self, client: _Client, order: Order) -> None:
        """On a thread of its own."""
        found = self._looker.look(order)
        self._hand_over(partial(self._looked, client, order, found))

    def _read_gpus_aside(self, client: _Client, spaces: tuple[WatchedSpace, ...]) -> None:
        """On a thread of its own."""
        self._looker.read_gpus(spaces)
        self._hand_over(partial(self._go_on, client))

    def _close_files(self, files: list[int]) -> None:
        def close() -> None:
            for file in files:
                os.close(file)

        if files:
            self._closers.run(close)

    def _try(self) -> None:
        if self._trying_since is None:
            self._trying_since = time.monotonic()
            self._lookers.run(lambda: self._hand_over(partial(self._tried, self._looker.absence())))

    def _tried(self, absence: str) -> None:
        self._absence, self._trying_since = absence, None

    def _hand_over(self, take: Callable[[], None]) -> None:
        self._found.append(take)
        # Without a loop, `close` takes it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take_found)

    def _take_found(self) -> None:
        while self._found:
            self._found.popleft()()

    def _looked(self, client: _Client, order: Order, found: Found) -> None:
        if self._clients.get(client.key) is not client:
            # It has ended meanwhile; what its address space had to say of that is worth all the more.
            for space in found.opened:
                self._adopt(client, space)
                if self._held.get(client.key) is not client:
                    self._drop(client, space)
            self._close_files(list(found.anchors))
            return
        client.reason = found.reason
        self._keep_anchors(client, found.anchors)
        for space in found.held:
            self._settle(client, space)
        for space in found.opened:
            self._take_new(client, order, space)
        client.let_be |= found.ended
        self._go_on(client)

    def _keep_anchors(self, client: _Client, found: tuple[int, ...]) -> None:
        """Keep the first few: without those of before, what is watched would be taken apart as the client ends."""
        fresh = [file for file in found if not any(foreign_fd.same_file(file, kept) for kept in client.anchors)]
        room = MAX_SPACES_OF_A_CLIENT - len(client.anchors)
        client.anchors += tuple(fresh[:room])
        self._close_files([file for file in found if file not in client.anchors])

    def _go_on(self, client: _Client) -> None:
        """A look is over: on to the next one."""
        client.looking_since = None
        if self._clients.get(client.key) is not client:
            return
        if client.look_again:
            client.look_again = False
            self._look(client)
        elif not client.let_be:
            self._look_later(client)

    def _look_later(self, client: _Client) -> None:
        if client.looks <= len(LOOKS):
            client.timer = self._loop.call_later(LOOKS[client.looks - 1], self._look, client)
        elif not client.spaces:
            client.reason += f"; looked {client.looks} times"

    def _take_new(self, client: _Client, order: Order, space: WatchedSpace) -> None:
        """Watch an address space that nobody watched when the look began."""
        watched = [one for other in self._clients.values() for one in other.spaces]
        since = [one for one in watched if one not in order.own and one not in order.others]
        twin = next((one for one in since if one.is_same(space)), None)
        if twin is None and len(watched) < self._max_spaces:
            self._adopt(client, space)
            return
        self._closers.run(space.close)
        if twin is not None:
            self._settle(client, twin)
        else:
            client.reason = f"{self._max_spaces} address spaces are watched already"

    def _adopt(self, client: _Client, space: WatchedSpace) -> None:
        client.spaces.append(space)
        space.start(self._emit, self._counts, self._broke)

    def _settle(self, client: _Client, space: WatchedSpace) -> None:
        """Give an address space that two clients hold to the one that started earlier: it opened it."""
        holder = self._clients.get(space.owner)
        if holder is None or holder is client or space not in holder.spaces:
            return
        # Within one clock tick the lower pid is the earlier one, but for a wrap of the numbers.
        older, younger = sorted((holder, client), key=lambda one: (one.key.start_ticks, one.key.pid))
        younger.reason = f"the address space it holds is that of process {older.key.pid}"
        if older is client:
            holder.spaces.remove(space)
            client.spaces.append(space)
            space.owner = client.key

    def _broke(self, space: WatchedSpace) -> None:
        client = self._clients.get(space.owner) or self._held[space.owner]
        self._drop(client, space)
        client.cancel_timer()
        client.let_be = True
        client.reason = "the driver gave its event queue up"

    def _drop(self, client: _Client, space: WatchedSpace) -> None:
        client.spaces.remove(space)
        space.stop()
        self._closers.run(space.close)

    @staticmethod
    def _reason(client: _Client) -> str:
        if (since := _held_up(client)) is not None:
            return f"{client.reason}; the driver has held up a look at it for {since:.0f} s"
        return client.reason


def _held_up(client: _Client) -> float | None:
    """For how many seconds a look at the client has been going on, if that is too long."""
    if client.looking_since is None:
        return None
    since = time.monotonic() - client.looking_since
    return since if since > SLOW else None
