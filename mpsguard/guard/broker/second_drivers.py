# long: it owns on which lanes the drivers of each client are, and what each of their words means for that
"""Second drivers: clients that another driver in the same process takes over from a lane that has faulted.

A client's second driver connects to the domain's directory ``second``. So the kernel says which connection is one: a
further context of the first driver comes by another address, whatever the program says. The process is told by the
connection's own pidfd. The lane is the guard's choice: the other one of the domain. What a program says of itself (that
it has gone over) is believed where it can hurt no other client: its own lane has faulted, and the guard itself has
passed its second driver on.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.broker.handshake import RefusedError
from mpsguard.guard.broker.second_decisions import ALONE, BESIDE, NOT_READY, READY, refusal, repetition
from mpsguard.guard.broker.second_places import Move, SecondPlace, Verdicts, load_places
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.lanes import lane_state
from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.lanes.lane_set import LaneSet
from mpsguard.guard.lanes.levers import Levers
from mpsguard.guard.model import Client, LaneState
from mpsguard.linux.files.directory import replace_file
from mpsguard.linux.identity import Credentials, ProcessKey, UserKey, is_root
from mpsguard.linux.tasks import Owner
from mpsguard.preload.second_claim import SecondClaim

_SIGN_WITHIN: Final = 2.0
"""Seconds in which the guard sees a fault of which a client knows already. The server says so first (580.159.04: error
719 comes 0.1 to 0.4 s after the fault), but the question may wait behind others."""
_LEFT_WITHIN: Final = 15.0
"""Seconds for a lane to end what it has of a client that has moved."""
_SAVE_WITHIN: Final = 5.0
"""Seconds for the disk when the guard ends."""
_LOOK_AGAIN: Final = 0.05
"""Seconds between two questions meanwhile."""


class SecondDrivers:
    """Owns which clients of a domain have a second driver and which have lost their first, on disk too."""

    def __init__(
        self,
        name: str,
        lanes: LaneSet,
        known: ClientTable,
        path: Path,
        *,
        all_ahead: bool,
        levers: Callable[[Client], Levers],
        connected: Callable[[Client], None],
        said: Callable[[ProcessKey], Awaitable[SecondClaim | None]],
        verdicts: Verdicts,
        events: EventStream,
    ) -> None:
        """Create it.

        Args:
            name: of the domain.
            lanes: the domain's.
            known: the domain's clients.
            path: where it is remembered for the next guard.
            all_ahead: whether every user may connect before a fault; else root and the guard's user may.
            levers: returns what a client has of its class and its program, for another server.
            connected: called with a client when its second driver has its socket.
            said: returns what a client says now; what it says of going over is known here by then.
            verdicts: what triage has found, and the domain's configuration.
            events: receives what second drivers do.
        """
        self._name = name
        self._lanes = lanes
        self._clients = known
        self._path = path
        self._all_ahead = all_ahead
        self._levers = levers
        self._on_connected = connected
        self._said = said
        self._verdicts = verdicts
        self._events = events
        self._lost: dict[ProcessKey, float] = {}
        """When the fatal fault was seen that each of these clients has lost its first driver by."""
        self._refused: set[ProcessKey] = set()
        self._moving: dict[ProcessKey, Move] = {}
        """Clients that were asked to move, and have not said what came of it."""
        self._words: dict[ProcessKey, int] = {}
        """The last word by which each client was asked. All users read it, and it stays good until it is answered."""
        self._without: set[ProcessKey] = set()
        """Clients that had a second driver on a lane when that faulted: it is of no use, and none replaces it."""
        self._next: set[ProcessKey] = set()
        """Clients that have gone over, and now connect the driver after that."""
        self._leaving: dict[ProcessKey, asyncio.Event] = {}
        """Clients that have moved, while the lane before ends their work: also that of a driver that comes there."""
        self._times: dict[ProcessKey, int] = {}
        """How often each client has gone over, as it counts."""
        self._recalled = {place.process: place for place in load_places(path)}
        """What the guard before this one knew of processes, until they are found on a lane."""
        self._saved = list(self._recalled.values())
        self._writing = Owner()

    @property
    def ahead_mode(self) -> int:
        """Return the mode of the file by which programs see whether they may connect before a fault."""
        return 0o711 if self._all_ahead else 0o700

    async def admit(self, process: ProcessKey, sender: Credentials) -> Levers:
        """Let a process connect its second driver, and return what the server is to give it.

        Takes `_SIGN_WITHIN` if the guard has yet to see the fault.

        Raises:
            RefusedError: it may not, or not now.
        """
        # A program's first context may be a moment old.
        await self._clients.entered((process,))
        if (leaving := self._leaving.get(process)) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LEFT_WITHIN):
                    await leaving.wait()
        ahead = self.may_ahead(sender.user)
        begins = await self._begins(process)
        client = self._clients.get(process)
        if client is not None and begins and not ahead and process not in self._moving:
            await self._until_lost(client)
            client = self._clients.get(process)
        lost = client is not None and self.has_lost(client)
        move = self._moving.get(process)
        allowed = ahead or move is not None
        culprit = process in self._verdicts.culprits
        if why := refusal(client, lost=lost, ahead=allowed, culprit=culprit, begins=begins):
            raise RefusedError("second_driver", why)
        assert client is not None
        if not begins:
            self._next.discard(process)
        elif self._is_over(client) and move is None:
            self._next.add(process)
        levers = self.levers_of(client)
        if move is None or move.share is None or not self._verdicts.settings.classes:
            return levers
        return msgspec.structs.replace(levers, share=move.share)

    def levers_of(self, client: Client) -> Levers:
        """Return what a server is to give a client that connects once more: it may have let go of what it had there."""
        return self._levers(client)

    async def _begins(self, process: ProcessKey) -> bool:
        """Return whether a connection is of a driver that was not passed on yet: others have further contexts.

        A client that has one makes the next when it has gone over: it says so, and may know it before the guard does.
        """
        client = self._clients.get(process)
        if client is None or process in self._moving:
            return True
        if client.second_lane is None and not self._is_over(client):
            return True
        claim = await self._said(process)
        if claim is not None and claim.times != self._times.get(process, 0):
            await self._until_lost(client)
        client = self._clients.get(process)
        if client is None or client.second_lane is not None:
            return client is None
        return self.has_lost(client) or (claim is not None and (claim.makes_ready or not claim.waits))

    def may_ahead(self, user: UserKey) -> bool:
        """Return whether a user's programs may connect before a fault."""
        return self._all_ahead or is_root(user) or user == UserKey(os.geteuid())

    def lane_of(self, process: ProcessKey) -> Lane | None:
        """Return the lane for a client's second driver; None if it is no client, or there is no other lane."""
        client = self._clients.get(process)
        if client is None:
            return None
        if process in self._moving:
            return self._lanes.named(self._moving[process].lane)
        if client.second_lane is not None:
            return self._lanes.named(client.second_lane)
        if self._is_over(client) and process not in self._next:
            return self._lanes.named(client.lane)
        return next((lane for lane in self._lanes.all if lane.spec.name != client.lane), None)

    def connected(self, process: ProcessKey, lane: str) -> None:
        """Take note of a second driver that has its socket. Its later ones, for contexts, change nothing."""
        client = self._clients.get(process)
        if client is None or (self._is_over(client) and process not in self._next and process not in self._moving):
            return
        self._next.discard(process)
        if client.second_lane == lane or (client.second_lane is not None and process not in self._moving):
            return
        changed = self._change(client, second_lane=lane)
        self._publish("second_driver_connected", changed, lane=lane, after_fault=self.has_lost(changed))
        self._on_connected(changed)

    def reconnected(self, process: ProcessKey) -> None:
        """Take note of another context of a client's first driver: on a lane that lives, it has work there again."""
        client = self._clients.get(process)
        lane = self._lanes.named(client.lane) if client is not None else None
        if lane is not None and lane.report.state is not LaneState.FAULT:
            self._lost.pop(process, None)

    def has_lost(self, client: Client) -> bool:
        """Return whether the lane that a client's work is on has faulted under it."""
        if client.process in self._lost:
            return True
        lane = self._lanes.named(client.lane)
        return lane is not None and lane.report.state is LaneState.FAULT

    def lost_at(self, client: Client) -> float | None:
        """Return when the fault was seen that a client has lost its work by (CLOCK_MONOTONIC); None: it has not."""
        return self._lost.get(client.process, time.monotonic()) if self.has_lost(client) else None

    def has_lost_second(self, process: ProcessKey) -> bool:
        """Return whether a client had a second driver on a lane that faulted before its own did."""
        return process in self._without

    def faulted(self, lane: str) -> None:
        """Take note that a lane's server has a fatal fault: all contexts of its clients are lost."""
        for client in self._clients.all():
            if client.lane == lane:
                self._lost.setdefault(client.process, time.monotonic())
            elif client.second_lane == lane:
                self._clients.replace(msgspec.structs.replace(client, second_lane=None))
                self._without.add(client.process)
                self._publish("second_driver_lost", client, lane=lane)
        self._save()

    def went_over(self, process: ProcessKey, times: int) -> Client | None:
        """Take a client's word that it has gone over, so many times by now; None if that is no news, or cannot be true.

        It cannot unless the guard has passed its next driver on to another lane, and the client's own has faulted.
        """
        client = self._clients.get(process)
        if client is None or client.second_lane is None or not self.has_lost(client):
            return None
        if times == self._times.get(process, 0):
            return None
        self._times[process] = times
        self._settle(process)
        return self._change(
            client, lane=client.second_lane, second_lane=None, lane_before=client.lane, went_over_at=time.time()
        )

    def times(self, process: ProcessKey) -> int:
        """Return how often a client has gone over, as far as the guard has taken its word for it."""
        return self._times.get(process, 0)

    def begin_move(self, process: ProcessKey, move: Move, word: int = 0) -> None:
        """Let a client's second driver connect, to that lane, although no fault has been.

        ``word``: by which it is asked; 0: by none.
        """
        self._moving[process] = move
        if word:
            self._words[process] = word
        self._save()

    def move_of(self, process: ProcessKey) -> Move | None:
        """Return where a client was asked to move to; None if it was not, or what came of it is known."""
        return self._moving.get(process)

    def asked_by(self, word: int, other_than: ProcessKey) -> ProcessKey | None:
        """Return another process that was asked by a word, and may heed it still; None if there is none."""
        recalled = ((place.process, place.word) for place in self._recalled.values())
        known = (*self._words.items(), *recalled)
        return next((process for process, asked in known if asked == word != 0 and process != other_than), None)

    def moved(self, process: ProcessKey) -> Client | None:
        """Take a client's word that it has moved; None if it cannot be true.

        It cannot unless it was asked to, and the guard has passed its second driver on to the lane.
        """
        client, move = self._clients.get(process), self._moving.get(process)
        if client is None or move is None or client.second_lane != move.lane:
            return None
        del self._moving[process]
        self._times[process] = (self._times.get(process, 0) + 1) % 256
        self._settle(process)
        self._leaving[process] = asyncio.Event()
        return self._change(
            client,
            lane=move.lane,
            second_lane=None,
            lane_before=client.lane if client.lane != move.lane else None,
            moved_at=time.time(),
            # What is told of the lane before is of this.
            went_over_at=None,
            sm_share=client.sm_share if move.share is None else move.share,
        )

    def _settle(self, process: ProcessKey) -> None:
        """Take note that a client's work is on another lane now: what was of the one before is over."""
        self._lost.pop(process, None)
        self._without.discard(process)
        self._next.discard(process)

    def not_moved(self, process: ProcessKey, *, has_second: bool) -> None:
        """Take note that a client stays where it is; ``has_second``: it keeps a second driver for a fault."""
        client = self._clients.get(process)
        if self._moving.pop(process, None) is not None and client is not None:
            self._change(client, second_lane=client.second_lane if has_second else None)

    def let_go(self, process: ProcessKey) -> None:
        """Take note that the lane that a client moved from ends nothing of it any more."""
        if (leaving := self._leaving.pop(process, None)) is not None:
            leaving.set()

    def left(self, process: ProcessKey) -> None:
        """Take note that the lane that a client moved from has it no more."""
        client = self._clients.get(process)
        if client is not None and client.moved_at is not None:
            self._change(client, lane_before=None)

    def refused(self, process: ProcessKey) -> bool:
        """Take a client's word that its second driver did not take it over; False if that is nothing new."""
        client = self._clients.get(process)
        if client is None or not self.may_be_refused(client):
            return False
        self._refused.add(process)
        return True

    def repetition(self, pid: int) -> str:
        """Return where the client with a pid is to do its work in flight again."""
        client = next((each for each in self._clients.all() if each.process.pid == pid), None)
        if client is None:
            return ALONE
        process = client.process
        return repetition(
            culprit=process in self._verdicts.culprits,
            innocent_of=self._verdicts.innocents.get(process),
            # It may know of the fault before the guard does.
            lost_at=self._lost.get(process, time.monotonic()),
            trusted=self._verdicts.settings.repetition == BESIDE,
        )

    def readiness(self, pid: int) -> str:
        """Return whether the client with a pid may make its next driver ready, ahead of a fault."""
        client = next((each for each in self._clients.all() if each.process.pid == pid), None)
        busy = client is not None and (client.process in self._moving or client.process in self._leaving)
        if client is None or busy or not self.may_ahead(client.user):
            return NOT_READY
        lane = next((lane for lane in self._lanes.all if lane.spec.name != client.lane), None)
        there = lane is not None and lane.report.state is not LaneState.FAULT and lane_state.admits(lane.report.state)
        return READY if there and not self.has_lost(client) else NOT_READY

    def may_go_over(self, client: Client) -> bool:
        """Return whether the guard would let a second driver take a client over once its lane has faulted."""
        culprit = client.process in self._verdicts.culprits
        return not refusal(client, lost=True, ahead=False, culprit=culprit, begins=True)

    def may_be_refused(self, client: Client) -> bool:
        """Return whether a client's lane has faulted under it, and it has not said what came of that."""
        return client.process not in self._refused and self.has_lost(client)

    def ended(self, process: ProcessKey) -> None:
        """Forget a client that has ended."""
        self._lost.pop(process, None)
        self._refused.discard(process)
        self._moving.pop(process, None)
        self._words.pop(process, None)
        self._without.discard(process)
        self._next.discard(process)
        self.let_go(process)
        self._times.pop(process, None)
        self._save()

    def settled(self) -> None:
        """Forget processes that were found on no lane, now that all of them have been looked at."""
        self._recalled.clear()
        self._save()

    def recalled(self, client: Client) -> Client:
        """Return a client that was found on a lane as the guard before this one knew it."""
        place = self._recalled.pop(client.process, None)
        if place is None or self._lanes.named(place.lane) is None:
            return client
        if place.lost:
            self._lost.setdefault(client.process, time.monotonic())
        if place.moving_to is not None and self._lanes.named(place.moving_to) is not None:
            self._moving[client.process] = Move(place.moving_to, place.share, place.number)
        if place.word:
            self._words[client.process] = place.word
        if place.times:
            self._times[client.process] = place.times
        return msgspec.structs.replace(
            client,
            lane=place.lane,
            second_lane=place.second_lane,
            lane_before=place.lane_before,
            went_over_at=place.went_over_at,
            moved_at=place.moved_at,
            sm_share=client.sm_share if place.moved_at is None or place.share is None else place.share,
        )

    @staticmethod
    def _is_over(client: Client) -> bool:
        return client.went_over_at is not None or client.moved_at is not None

    async def _until_lost(self, client: Client) -> None:
        home = self._lanes.named(client.lane)
        with suppress(TimeoutError):
            async with asyncio.timeout(_SIGN_WITHIN):
                while home is not None and not self.has_lost(client):
                    await home.fresh()
                    await asyncio.sleep(_LOOK_AGAIN)

    def _change(self, client: Client, **changes: object) -> Client:
        changed = msgspec.structs.replace(client, **changes)
        self._clients.replace(changed)
        self._save()
        return changed

    def _publish(self, kind: str, client: Client, **more: object) -> None:
        self._events.publish(kind, self._name, user=client.user, pid=client.process.pid, **more)

    async def saved(self) -> None:
        """Wait until what is known is on disk, or could not be written there in time."""
        await self._writing.settle(_SAVE_WITHIN)

    def _save(self) -> None:
        """Write what has changed down, beside the event loop: after a fault many clients end at once."""
        if not len(self._writing):
            self._writing.spawn(self._write(), name=f"second drivers of {self._name}")

    async def _write(self) -> None:
        while (places := [*self._recalled.values(), *self._places()]) != self._saved:
            try:
                await asyncio.to_thread(replace_file, self._path, msgspec.json.encode(places))
            except OSError as error:
                self._events.publish("second_drivers_not_saved", self._name, detail=str(error))
                return
            self._saved = places

    def _places(self) -> list[SecondPlace]:
        return [
            SecondPlace(
                client.process,
                client.lane,
                client.second_lane,
                client.lane_before,
                client.went_over_at,
                client.process in self._lost,
                client.moved_at,
                move.share if (move := self._moving.get(client.process)) is not None else client.sm_share,
                move.lane if move is not None else None,
                move.number if move is not None else 0,
                self._words.get(client.process, 0),
                self._times.get(client.process, 0),
            )
            for client in self._clients.all()
            if client.second_lane
            or client.lane_before
            or client.moved_at
            or client.process in self._lost
            or client.process in self._moving
            or client.process in self._words
            or client.process in self._times
        ]
