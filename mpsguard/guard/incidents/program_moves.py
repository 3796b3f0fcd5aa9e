"""Program moves: brings an unmodified program to another lane, or to another share, without a fault.

The program does it itself, in a second driver (docs/concepts/moves.md). The guard says where to, asks it, lets its
second driver connect, takes its word, and has the old lane let go of it.
"""

import asyncio
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from mpsguard.guard.broker.lowered_shares import ClassCeilings
from mpsguard.guard.broker.move_page import MovePage, MoveRequest
from mpsguard.guard.broker.second_claims import SecondClaims
from mpsguard.guard.broker.second_drivers import SecondDrivers
from mpsguard.guard.broker.second_places import Move
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.control_api.messages.clients import ClientMoved
from mpsguard.guard.control_api.messages.lanes import ProgramLeft
from mpsguard.guard.incidents.domain_view import DomainView
from mpsguard.guard.incidents.live_resize import share_refusal
from mpsguard.guard.lanes import lane_state
from mpsguard.guard.lanes.command import CommandFailedError
from mpsguard.guard.model import Client, LaneState, Work
from mpsguard.guard.remedies import termination
from mpsguard.linux.identity import ProcessKey, UserKey
from mpsguard.linux.tasks import Owner, beside
from mpsguard.preload.second_claim import ClaimPhase, SecondClaim
from mpsguard.preload.second_move import MOST_NUMBER, MoveAnswer, MoveState

_WITHIN: Final = 60.0
"""Seconds for a program's answer: the connection of its second driver may wait for its lane."""
_TAKEN_BACK_WITHIN: Final = 5.0
"""Seconds for its answer once the request is taken back: what it has begun, it finishes."""
_LINE_WITHIN: Final = 300.0
"""Seconds after which no further program of a user is asked: `mpsguard-ctl move` waits ten minutes for all."""
_LET_GO_WITHIN: Final = 10.0
"""Seconds for the old lane's daemon."""
_LOOKS: Final = 30
_LOOK_AGAIN: Final = 0.1
"""Seconds between two looks at what a program says."""
_LEFT_OPEN: Final = "it stays until the process ends"
"""580.159.04 lists a client that it has terminated for as long as its connections are there."""
_GONE_WITHIN: Final = 3.0
"""Seconds in which a server sees that connections were shut down."""


class MoveError(Exception):
    """A program does not move; one line says why."""


def refusal(
    client: Client | None, claim: SecondClaim | None, *, moving: bool, times: int, meant: ProcessKey | None = None
) -> str:
    """Return why a client cannot be asked to move; "" if it can. Pure.

    ``times``: how often it has gone over, as the guard knows; ``meant``: another process, that has been asked by the
    word that this one says is its own.
    """
    if client is None:
        return "it is no client of this domain"
    if client.second_driver is None:
        return "it has no second driver (MPSGUARD_SECOND_DRIVER)"
    if moving:
        return "it is being moved"
    if claim is None:
        return "it has said nothing of its second driver yet: it needs the preload, and a context"
    if claim.phase is ClaimPhase.MOVED and claim.times != times:
        return "it says that it has moved, and had no second driver where it was asked to go"
    if not claim.waits:
        return f"{claim.reason or 'going_over'}: its lane has faulted"
    if meant is not None:
        return f"it says the word by which process {meant.pid} was asked: that one would move in its place"
    return ""


class ProgramMoves:
    """Moves the unmodified programs of one domain."""

    def __init__(
        self, domain: DomainView, drivers: SecondDrivers, ceilings: ClassCeilings, events: EventStream
    ) -> None:
        """``ceilings``: what objectives leave to classes."""
        self._domain = domain
        self._drivers = drivers
        self._ceilings = ceilings
        self._events = events
        self.page = MovePage()
        """What programs are asked; the directory of second drivers makes it."""
        self._claims: SecondClaims | None = None
        self._waiting: dict[ProcessKey, tuple[int, asyncio.Future[MoveState]]] = {}
        self._left: set[ProcessKey] = set()
        """Clients with a request that was taken back before a final answer, until a look since then shows what came."""
        self._closing = Owner()
        self._closed = False

    def open(self, claims: SecondClaims) -> None:
        """Begin: ``claims`` reaches the clients."""
        self._claims = claims

    async def close(self) -> None:
        """End what still runs. A client that is asked says to the next guard what came of it."""
        self._closed = True
        await self._closing.end()

    async def move(self, pid: int, lane: str | None, share: float | None, *, let_go: bool | None) -> ClientMoved:
        """Move a client, and return when it goes on.

        Args:
            pid: its process.
            lane: where to; None: the other lane, or for another share its own.
            share: percent of the SMs; None: as it has.
            let_go: whether its old lane is to let go of it; None: unless it stays on that.

        Raises:
            MoveError: it stays where it is, as if nothing had been.
        """
        client = next((each for each in self._domain.clients.all() if each.process.pid == pid), None)
        claim = await self._claim(client) if client is not None and client.second_driver is not None else None
        moving = client is not None and self._drivers.move_of(client.process) is not None
        meant = self._drivers.asked_by(self._word(client.process), client.process) if client is not None else None
        times = self._drivers.times(client.process) if client is not None else 0
        if why := refusal(client, claim, moving=moving, times=times, meant=meant):
            raise MoveError(f"process {pid}: {why}")
        assert client is not None
        move = Move(self._lane(client, lane, share), share, 1 + secrets.randbelow(MOST_NUMBER))
        self._check(client, move)
        return await self._moved(client, move, let_go=let_go)

    def on(self, lane: str) -> list[int]:
        """Return the clients of a lane that ask for a second driver; not those of sessions."""
        return [
            client.process.pid
            for client in self._domain.clients.all()
            if client.lane == lane and client.second_driver is not None and client.program is None
        ]

    async def drain(self, pids: Iterable[int], lane: str) -> tuple[tuple[int, ...], tuple[ProgramLeft, ...]]:
        """Move clients to a lane, one of each user after the other; return those that moved, and why others did not.

        A user's programs that do not answer hold up no other user's, and the answer for a few minutes at most.
        """
        lines: dict[UserKey | None, list[int]] = {}
        users = {client.process.pid: client.user for client in self._domain.clients.all()}
        for pid in pids:
            lines.setdefault(users.get(pid), []).append(pid)
        moved: list[int] = []
        left: list[ProgramLeft] = []
        async with beside(*(self._drain_line(line, lane, moved, left) for line in lines.values())) as draining:
            await asyncio.gather(*draining)
        return tuple(moved), tuple(left)

    async def _drain_line(self, pids: list[int], lane: str, moved: list[int], left: list[ProgramLeft]) -> None:
        due = time.monotonic() + _LINE_WITHIN
        for pid in pids:
            if time.monotonic() > due:
                left.append(ProgramLeft(pid, f"process {pid}: not asked: its user's other programs took too long"))
                continue
            try:
                moved.append((await self.move(pid, lane, None, let_go=None)).pid)
            except MoveError as error:
                left.append(ProgramLeft(pid, str(error)))

    def answered(self, process: ProcessKey, state: MoveState) -> None:
        """Take a client's answer."""
        number, waiter = self._waiting.get(process, (0, None))
        final = state.answer not in (MoveAnswer.NONE, MoveAnswer.UNDER_WAY)
        if waiter is not None:
            if state.number == number and final and not waiter.done():
                waiter.set_result(state)
        elif process not in self._left:
            # A guard before this one has asked, or the request was taken back while the client was at it.
            self._came_of_it(process, state)

    def said_moved(self, process: ProcessKey) -> None:
        """Take the claim of a client that it has moved: a guard before this one has asked it to."""
        client = self._domain.clients.get(process)
        if process not in self._waiting and self._drivers.move_of(process) is not None and client is not None:
            late = self._arrived(client, MoveState(answer=MoveAnswer.MOVED), 0, let_go=None)
            self._closing.spawn(late, name=f"move of process {process.pid}")

    def ended(self, process: ProcessKey) -> None:
        """Let go of a client that has ended."""
        _, waiter = self._waiting.get(process, (0, None))
        if waiter is not None and not waiter.done():
            waiter.set_result(MoveState(reason="ended"))

    def _word(self, process: ProcessKey) -> int:
        return self._claims.token_of(process) if self._claims is not None else 0

    async def _claim(self, client: Client) -> SecondClaim | None:
        """Return what a client says now; it is looked at now and then, and one that has just come was not yet.

        The word by which it can be asked comes later than that it waits: a hot one makes its second driver before.
        """
        if self._claims is None:
            return None
        self._claims.hurry(client.process)
        claim: SecondClaim | None = None
        for _ in range(_LOOKS):
            claim = self._claims.of(client.process)
            if claim is not None and (claim.phase is not ClaimPhase.WAITING or self._word(client.process)):
                break
            await asyncio.sleep(_LOOK_AGAIN)
        return claim

    def _lane(self, client: Client, lane: str | None, share: float | None) -> str:
        if lane is not None:
            return lane
        if share is not None:
            return client.lane
        other = next((each for each in self._domain.lanes.all if each.spec.name != client.lane), None)
        if other is None:
            raise MoveError(f"domain {self._domain.name!r} has one lane only (standby = true gives it another)")
        return other.spec.name

    def _check(self, client: Client, move: Move) -> None:
        name = self._domain.name
        lane = self._domain.lanes.named(move.lane)
        if self._domain.settings.second_driver == "off" or self._domain.lanes.spare is None:
            raise MoveError(f"domain {name!r} has no directory for second drivers (standby = true, second_driver)")
        if lane is None:
            raise MoveError(f"domain {name!r} has no lane {move.lane!r}")
        if move.share is None and move.lane == client.lane:
            raise MoveError(f"process {client.process.pid} is on {move.lane} already")
        if self._drivers.has_lost(client):
            raise MoveError(f"{client.lane} has faulted")
        if lane.report.state is LaneState.FAULT or not lane_state.admits(lane.report.state):
            raise MoveError(f"{move.lane} takes no clients now: {lane.report.state.value}")
        if move.share is not None and (
            why := share_refusal(self._domain, client.service_class, move.share, self._ceilings)
        ):
            raise MoveError(why)

    def _leave(self, process: ProcessKey) -> None:
        """Find out what comes of a request that was taken back without a final answer."""
        # Else the next guard does: it begins with a page on which nothing is asked.
        if not self._closed:
            self._left.add(process)
            self._closing.spawn(self._see(process), name=f"what came of the move of process {process.pid}")

    async def _see(self, process: ProcessKey) -> None:
        try:
            state = await self._claims.looked(process) if self._claims is not None else None
        finally:
            self._left.discard(process)
        if state is not None:
            self._came_of_it(process, state)

    def _came_of_it(self, process: ProcessKey, state: MoveState) -> None:
        """Take what a client says once its request has been taken back: it heeds that no more unless it is at it."""
        client, move = self._domain.clients.get(process), self._drivers.move_of(process)
        if client is None or move is None or state.answer is MoveAnswer.UNDER_WAY:
            return
        if state.answer is MoveAnswer.MOVED:
            self.said_moved(process)
        else:
            self._stays(client, move, state if state.number == move.number else MoveState(reason="no answer"))

    def _stays(self, client: Client, move: Move, state: MoveState) -> str:
        """Undo what was noted for a move; return why the client stays."""
        busy = state.answer is MoveAnswer.BUSY
        # As it was where nothing has begun; one that is busy keeps what was made for a fault.
        has_second = state.answer is MoveAnswer.NONE or (busy and client.second_driver == "hot" and move.share is None)
        self._drivers.not_moved(client.process, has_second=has_second)
        why = state.reason or ("busy" if busy else "no answer")
        told = {"pid": client.process.pid, "lane": client.lane, "to": move.lane, "share": move.share, "reason": why}
        self._events.publish("client_not_moved", self._domain.name, user=client.user, **told)
        return why

    async def _moved(self, client: Client, move: Move, *, let_go: bool | None) -> ClientMoved:
        process, number = client.process, move.number
        waiter: asyncio.Future[MoveState] = asyncio.get_running_loop().create_future()
        self._waiting[process] = (number, waiter)
        try:
            # Known before it is asked: its second driver may come at once.
            word = self._word(process)
            self._drivers.begin_move(process, move, word)
            state = await self._answer(process, MoveRequest(word, number, move.share, let_go is True), waiter)
        except BaseException:
            self._leave(process)
            raise
        finally:
            del self._waiting[process]
        if state.answer is MoveAnswer.MOVED:
            # The program is there, also if the caller waits no more: only the guard's end breaks off what is left.
            arrived = self._arrived(client, state, number, let_go=let_go)
            result = await asyncio.shield(self._closing.spawn(arrived, name=f"move of process {process.pid}"))
            if result is None:
                raise MoveError(f"process {process.pid} says that it moved, without a second driver there")
            return result
        self.page.take_back(number)
        if state.answer is MoveAnswer.NONE and not state.reason:
            self._leave(process)
            raise MoveError(f"process {process.pid} stays on {client.lane}: no answer")
        raise MoveError(f"process {process.pid} stays on {client.lane}: {self._stays(client, move, state)}")

    async def _answer(self, process: ProcessKey, request: MoveRequest, waiter: asyncio.Future[MoveState]) -> MoveState:
        """Ask a client, and return its answer; `MoveAnswer.NONE` if there is none.

        If this is broken off, the request is taken back; what came of it, the client's claim says later.
        """
        if self._claims is None or request.token == 0 or not self.page.ask(request):
            return MoveState(reason="cannot_be_asked")
        try:
            for within in (_WITHIN, _TAKEN_BACK_WITHIN):
                self._claims.hurry(process)
                with suppress(TimeoutError):
                    async with asyncio.timeout(within):
                        return await asyncio.shield(waiter)
                self.page.take_back(request.number)
        except BaseException:
            self.page.take_back(request.number)
            raise
        return MoveState()

    async def _arrived(
        self, client: Client, state: MoveState, number: int, *, let_go: bool | None
    ) -> ClientMoved | None:
        """Take note of a move, and have the old lane let go of the client; None if it has no second driver there."""
        changed = self._drivers.moved(client.process)
        if changed is None:
            self.page.take_back(number)
            self._drivers.not_moved(client.process, has_second=True)
            return None
        kept = _LEFT_OPEN
        try:
            kept = await self._let_go(client, changed, number, let_go=let_go)
        finally:
            self._drivers.let_go(client.process)
            result = ClientMoved(
                client.process.pid, changed.lane, client.lane, changed.sm_share, state.prepared, state.paused, kept
            )
            told = {"pid": result.pid, "lane": result.lane, "was": result.was, "share": result.share}
            times = {"prepared": round(state.prepared, 4), "paused": round(state.paused, 4), "kept": kept}
            self._events.publish("client_moved", self._domain.name, user=client.user, **told, **times)
        return result

    async def _let_go(self, before: Client, now: Client, number: int, *, let_go: bool | None) -> str:
        """End what the old lane has of a client; return why it has something still, or ""."""
        lane = self._domain.lanes.named(before.lane)
        handle = self._domain.clients.handle(now.process)
        try:
            if handle is None or lane is None:
                return "the process has ended"
            with handle:
                # On the same lane, it would end both of its contexts.
                if let_go is not False and now.lane_before is not None:
                    end = await termination.end_work((lane,), handle, _LET_GO_WITHIN)
                    if end.work not in (Work.ENDED, Work.NONE, Work.GONE):
                        return end.answer
        finally:
            # The program shuts its connections down now, if it was asked to.
            self.page.take_back(number)
        if not let_go:
            return _LEFT_OPEN
        if now.lane_before is None:
            return ""  # its server lists the process in any case
        for _ in range(int(_GONE_WITHIN / _LOOK_AGAIN)):
            with suppress(CommandFailedError):
                if now.process.pid not in await lane.clients():
                    self._drivers.left(now.process)
                    return ""
            await asyncio.sleep(_LOOK_AGAIN)
        return _LEFT_OPEN
