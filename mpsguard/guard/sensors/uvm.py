# long: one sensor with steps that call each other
"""The ``uvm`` sensor: in which client's address space a GPU fault was, told by the driver for each client apart.

It is attached from outside, to the files that a client has open; the client notices nothing. A CUDA process opens its
address space about when it first speaks to the MPS daemon, and nothing tells of that moment. So the sensor looks at
each handshake of the client, a few times more in the two seconds after it, also at which GPUs the client has registered
in it, and every few seconds from then on. It needs CAP_SYS_PTRACE over the clients, and kcmp(2).

A client may hide its address space behind other files, or open more than are watched. It is told then that it cannot be
watched; what becomes of it is for others to say.

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
from typing import ClassVar, Final, Self

from mpsguard.guard.evidence import Evidence
from mpsguard.guard.model import Client
from mpsguard.guard.sensors import uvm_client, uvm_shares
from mpsguard.guard.sensors.sensor import CLOSE_WITHIN, Sensor, SensorSetup, SensorState, register
from mpsguard.guard.sensors.uvm_client import Attachment, WatchedClient
from mpsguard.guard.sensors.uvm_look import MAX_SPACES_OF_A_CLIENT, Found, Looker, Order
from mpsguard.guard.sensors.uvm_shares import Limits, Refusal, TakenPlace
from mpsguard.guard.sensors.uvm_space import Counts, WatchedSpace
from mpsguard.linux.descriptors import foreign_fd
from mpsguard.linux.identity import ROOT, ProcessKey
from mpsguard.linux.nvidia import uvm_simulated
from mpsguard.linux.nvidia.uvm_processors import PROC_GPUS, GpuAddresses
from mpsguard.linux.nvidia.uvm_tools import ToolsDriver
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.side_threads import SharedThreads, SideThreads

VERDICT_WITHIN: Final = 5.0
"""Seconds that `UvmSensor.unwatchable` waits for a look, which takes milliseconds unless the driver is held up."""

_LOOKERS: Final = 64
_LOOKERS_OF_A_USER: Final = 2
"""At a time: a client can bring it about that the driver, or the kernel, holds up a look at it, for as long as it
likes. Others are looked at as long as fewer than `_LOOKERS` are held up; a thread is started when all others are."""
_HELD_UP: Final = 0.02
"""Seconds after which a look is taken for held up, and the next one does not wait for it; most take a millisecond."""
_CLOSERS: Final = 4


@register
class UvmSensor(Sensor):
    """Watches the address spaces of the clients it is told of. All calls come from its event loop; none waits."""

    name: ClassVar[str] = "uvm"

    def __init__(
        self,
        emit: Callable[[Evidence], None],
        *,
        driver: ToolsDriver | None = None,
        device: Path = Path("/dev/nvidia-uvm"),
        gpus: Path = PROC_GPUS,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        told: Callable[[Attachment], None] = lambda _: None,
    ) -> None:
        """Made inside a running event loop.

        ``told`` hears when a client cannot be watched, and when it can again; not while the sensor is absent.
        """
        self._emit = emit
        driver = driver or ToolsDriver()
        self._note = driver.note
        self._looker = Looker(driver, device, GpuAddresses(gpus), self._close_files)
        self._limits = limits
        self._told = told
        self._clients: dict[ProcessKey, WatchedClient] = {}
        self._held: dict[ProcessKey, WatchedClient] = {}
        self._counts = Counts()
        self._loop = asyncio.get_running_loop()
        self._found: deque[Callable[[], None]] = deque()
        """What threads have found and the loop has yet to take."""
        self._lookers = SharedThreads[int](
            "uvm-look", _LOOKERS, _LOOKERS_OF_A_USER, privileged=(ROOT,), alone_for=_HELD_UP
        )
        # Closing what is left of a dead client takes its address space apart in the kernel, which can take as long as
        # the GPU recovers: no look shall wait for that.
        self._closers = SideThreads("uvm-close", _CLOSERS)
        self._absence = "it has not been tried yet"
        self._trying_since: float | None = None
        self._try()

    def watch(self, handle: ProcessHandle, uid: int = 0) -> None:
        """Look for the address space of a user's client, now and several times in the next 2 s.

        To be called at each handshake of a client. ``handle`` may be closed afterwards.
        """
        client = self._clients.setdefault(handle.key, WatchedClient(handle.key, uid))
        if client.pidfd < 0:
            try:
                client.pidfd = os.dup(handle.fileno())
            except OSError as error:
                client.trouble = f"it cannot be held: {error}"
                self._say(client)
                return
        client.cancel_timer()
        client.looks = client.first = 0
        client.let_be = client.exchanges > uvm_client.MAX_EXCHANGES
        if not client.let_be:
            self._look(client)

    async def unwatchable(self, handle: ProcessHandle) -> str:
        """Look at all that a client has open; why something of it cannot be watched, or "".

        A client that has nothing to watch is not unwatchable: it cannot use a GPU yet. What it opens later is found.
        """
        if (client := self._clients.get(handle.key)) is None:
            return ""
        self.watch(handle, client.uid)
        client.asking.append(asking := self._loop.create_future())
        if client.looking_since is None:
            # It is left alone, or could not be held.
            client.answer()
        try:
            async with asyncio.timeout(VERDICT_WITHIN):
                await asking
        except TimeoutError:
            return f"a look at it was not over within {VERDICT_WITHIN:g} s"
        return client.unwatchable

    def unwatch(self, key: ProcessKey) -> None:
        """Read what is left of the client and let go of it, at once: until then its GPU memory stays allocated."""
        if (client := self._forget(key)) is not None:
            self._let_go(client)

    def hold(self, key: ProcessKey) -> tuple[int, ...]:
        """In the place of `unwatch`: go on watching an ended client's address spaces, which keeps them alive.

        Descriptors of their files, which stay this sensor's, for the service manager to hold too; () if there is none.
        """
        if (client := self._forget(key)) is None:
            return ()
        if not client.spaces:
            self._let_go(client)
            return ()
        self._held[key] = client
        return (*(space.file for space in client.spaces), *client.anchors)

    def release(self, key: ProcessKey) -> None:
        """Let go of what is held of an ended client."""
        if (client := self._held.pop(key, None)) is not None:
            self._let_go(client)

    def attachments(self) -> list[Attachment]:
        """Every client that came and has not ended."""
        return [client.attachment() for client in self._clients.values()]

    @classmethod
    def open(cls, setup: SensorSetup) -> Self:
        """See `Sensor`."""
        if setup.simulated:
            driver, device = uvm_simulated.SimulatedToolsDriver(), uvm_simulated.DEVICE
            return cls(setup.emit, driver=driver, device=device, told=setup.on_attachment)
        return cls(setup.emit, told=setup.on_attachment)

    def client_came(self, client: Client, handle: ProcessHandle) -> None:
        """See `Sensor`."""
        self.watch(handle, client.user)

    def client_came_again(self, client: Client, handle: ProcessHandle) -> None:
        """Look again: the client may have opened its address space since."""
        self.watch(handle, client.user)

    def client_ended(self, client: Client) -> None:
        """Let go of the client, unless it is held (`hold`)."""
        self.unwatch(client.process)

    def state(self) -> SensorState:
        """Absent if the device cannot be opened or the kernel cannot compare files.

        That was so when it was last tried, which is done at the start, and again, for the next time, by asking.
        """
        absence = self._absence
        if self._trying_since is not None and (since := time.monotonic() - self._trying_since) > uvm_client.SLOW:
            absence = f"the driver has not answered for {since:.0f} s"
        self._try()
        if absence:
            return SensorState(present=False, detail=f"{self._note}{absence}")
        attached = sum(1 for client in self._clients.values() if client.spaces)
        held_up = sum(1 for client in self._clients.values() if client.held_up() is not None)
        unwatchable = sum(1 for client in self._clients.values() if client.unwatchable)
        counts = self._counts
        return SensorState(
            present=True,
            detail=f"{self._note}attached to {attached} of {len(self._clients)} clients; "
            f"{counts.lost} fatal faults lost, {counts.unread} others not read, "
            f"{counts.unknown} entries of unknown kind"
            + (f"; {unwatchable} clients cannot be watched" if unwatchable else "")
            + (f"; {held_up} looks held up by the driver" if held_up else ""),
        )

    def close(self) -> None:
        """Let go of every client; waits until that is done, or CLOSE_WITHIN for what the driver holds up."""
        until = time.monotonic() + CLOSE_WITHIN
        for key in list(self._clients):
            self.unwatch(key)
        for key in list(self._held):
            self.release(key)
        self._lookers.close(CLOSE_WITHIN)
        self._take_found()
        self._closers.close(max(0.0, until - time.monotonic()))

    def _let_go(self, client: WatchedClient) -> None:
        for space in list(client.spaces):
            self._drop(client, space)
        self._close_files(list(client.anchors))
        client.anchors = ()

    def _forget(self, key: ProcessKey) -> WatchedClient | None:
        """Look at a client no more."""
        if (client := self._clients.pop(key, None)) is not None:
            client.close()
        return client

    def _look(self, client: WatchedClient) -> None:
        client.timer = None
        if client.looking_since is not None:
            client.look_again = True
            return
        client.looks += 1
        if not client.first and 1 < client.looks <= len(uvm_client.LOOKS) and client.spaces and client.anchors:
            client.looking_since = time.monotonic()
            self._lookers.run(client.uid, partial(self._read_gpus_aside, client, tuple(client.spaces)))
            return
        try:
            pidfd = os.dup(client.pidfd)
        except OSError as error:
            client.trouble = f"it cannot be held: {error}"
            client.answer()
            self._say(client)
            self._look_later(client, 0.0)
            return
        order = Order(
            key=client.key,
            uid=client.uid,
            pidfd=pidfd,
            first=client.first,
            own=tuple(client.spaces),
            others=tuple(space for other in self._clients.values() if other is not client for space in other.spaces),
        )
        client.looking_since = time.monotonic()
        self._lookers.run(client.uid, partial(self._look_aside, client, order))

    def _look_aside(self, client: WatchedClient, order: Order) -> None:
        """On a thread of its own."""
        found = self._looker.look(order)
        self._hand_over(partial(self._looked, client, order, found))

    def _read_gpus_aside(self, client: WatchedClient, spaces: tuple[WatchedSpace, ...]) -> None:
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
            self._lookers.run(0, lambda: self._hand_over(partial(self._tried, self._looker.absence())))

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

    def _looked(self, client: WatchedClient, order: Order, found: Found) -> None:
        if self._clients.get(client.key) is not client:
            # It has ended meanwhile; what its address space had to say of that is worth all the more.
            for space in found.opened:
                self._adopt(client, space)
                if self._held.get(client.key) is not client:
                    self._drop(client, space)
            self._close_files(list(found.anchors))
            return
        client.reason = found.reason
        client.lost = client.lost or found.lost
        self._keep_anchors(client, found.anchors)
        for space in found.held:
            self._settle(client, space)
        refused = [self._take_new(client, order, space) for space in found.opened]
        if any(space not in client.spaces for space in order.own):
            client.look_again = True  # one of them was given up meanwhile
        else:
            client.looked(order.first, found.next_descriptor, next(filter(None, refused), found.trouble))
        client.exchanges += found.exchanged
        if client.exchanges > uvm_client.MAX_EXCHANGES:
            client.lost = client.lost or "it exchanges its files while they are looked at"
            client.let_be = True
        client.let_be |= found.ended
        self._go_on(client)

    def _keep_anchors(self, client: WatchedClient, found: tuple[int, ...]) -> None:
        """Keep the first few: without those of before, what is watched would be taken apart as the client ends."""
        for file in found:
            if any(foreign_fd.same_file(file, kept) for kept in client.anchors):
                continue
            if len(client.anchors) == MAX_SPACES_OF_A_CLIENT:
                client.lost = client.lost or f"it has had more than {MAX_SPACES_OF_A_CLIENT} other files of the device"
                break
            client.anchors += (file,)
        self._close_files([file for file in found if file not in client.anchors])

    def _go_on(self, client: WatchedClient) -> None:
        """A look is over: on to the next one."""
        took = time.monotonic() - client.looking_since if client.looking_since is not None else 0.0
        client.looking_since = None
        if self._clients.get(client.key) is not client:
            return
        # What waits for a verdict came before this look began, unless that is to be repeated.
        again, client.look_again = client.look_again, False
        client.first = 0 if again else client.first
        if (again or (client.asking and client.first)) and not client.let_be:
            self._look(client)
            return
        client.answer()
        self._say(client)
        if not client.let_be:
            self._look_later(client, took)

    def _say(self, client: WatchedClient) -> None:
        """Tell of a client that cannot be watched, and when it can again."""
        if client.told != bool(client.unwatchable) and not self._absence:
            client.told = not client.told
            self._told(client.attachment())

    def _look_later(self, client: WatchedClient, took: float) -> None:
        seconds = uvm_client.until_next_look(client.looks, took, len(self._clients))
        client.timer = self._loop.call_later(seconds, self._look, client)

    def _take_new(self, client: WatchedClient, order: Order, space: WatchedSpace) -> str:
        """Watch an address space that was not watched when the look began; "", or why it cannot be watched."""
        watched = [one for other in self._clients.values() for one in other.spaces]
        since = [one for one in watched if one not in order.own and one not in order.others]
        twin = next((one for one in since if one.is_same(space)), None)
        if twin is not None:
            self._closers.run(space.close)
            self._settle(client, twin)
            return ""
        taken = [TakenPlace(other.key, other.uid) for other in self._clients.values() for _ in other.spaces]
        place = uvm_shares.place_for(client.uid, taken, self._limits)
        if isinstance(place, Refusal):
            self._closers.run(space.close)
            return place.reason
        if place is not None:
            self._give_up(self._clients[place])
        self._adopt(client, space)
        return ""

    def _give_up(self, client: WatchedClient) -> None:
        """Let go of the latest address space of a client of the user that has most."""
        self._drop(client, client.spaces[-1])
        client.trouble = "its user has most of what is watched, and another user's client came"
        self._say(client)

    def _adopt(self, client: WatchedClient, space: WatchedSpace) -> None:
        client.spaces.append(space)
        space.start(self._emit, self._counts, self._broke)

    def _settle(self, client: WatchedClient, space: WatchedSpace) -> None:
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
        client.trouble = "the driver gave its event queue up"
        client.answer()
        if client.key in self._clients:
            self._say(client)

    def _drop(self, client: WatchedClient, space: WatchedSpace) -> None:
        client.spaces.remove(space)
        space.stop()
        self._closers.run(space.close)
