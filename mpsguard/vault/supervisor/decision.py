"""Decides the supervisor's next actions: a pure function of the program's processes and an event.

The supervisor is not on the critical path of a failover: the vault promotes the standby that was ready first. The
supervisor follows, and ensures that one process serves or is about to, and that one stands by.

* The active process ends with 0: the program is done, and the others are ended.
* It ends otherwise: the standby, ready or not yet, becomes the active one; without one, a new one is started.
* The standby ends: another one is started, once there is a ready active one.
* Another process is promoted: the old active one is superseded. It must not write any more, and is ended.
* The promotion does not come: the standby is ended. The session had been left in order, or is gone.
* The active one ends repeatedly: after `give_up` consecutive deaths without a settled process, the program is over.

Processes are identified by numbers, assigned in the order in which they are started.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from mpsguard.linux.pacing import restart_delay
from mpsguard.vault.wire.supervisor_wire import ProcessRole


class Member(msgspec.Struct, frozen=True):
    """A process of the program that has not ended."""

    number: int
    role: ProcessRole
    ready: bool = False
    settled: bool = False
    """Whether it has been ready, or promoted, for the settling time."""
    superseded: bool = False
    """Whether it was the active one, and another one has been promoted."""


class PairState(msgspec.Struct, frozen=True):
    """The complete state. There is at most one standby, and at most one pending start."""

    give_up: int
    """Consecutive deaths of the active process without a settled one after which the program is given up."""
    members: tuple[Member, ...] = ()
    active: int | None = None
    """Number of the active process, or of the one that is to be promoted next."""
    promotion_due: bool = False
    """Whether the active one was a standby, is ready, and has not reported its promotion yet."""
    pending_start: ProcessRole | None = None
    """Role of the process that is to be started, at once or later."""
    next_number: int = 0
    deaths: int = 0
    """Deaths of the active process since one settled."""
    standby_deaths: int = 0
    """Deaths of standbys since one settled."""
    code: int = 0
    """Exit code of the active process that ended last."""
    given_up: bool = False
    """Whether the program was given up because of too many deaths."""
    over: bool = False
    """Whether nothing is started any more: the program is done, was given up, or is being stopped."""

    def member(self, number: int) -> Member | None:
        """Return the process with that number; None if it has ended."""
        return next((member for member in self.members if member.number == number), None)

    @property
    def serving(self) -> int | None:
        """The process that may have connections kept and take them: the active one, promoted if it was a standby."""
        member = None if self.active is None else self.member(self.active)
        if member is None or (member.role is ProcessRole.STANDBY and (self.promotion_due or not member.ready)):
            return None
        return member.number

    @property
    def standby(self) -> Member | None:
        """The process that stands by, or will."""
        return next((m for m in self.members if m.number != self.active and not m.superseded), None)


class Started(msgspec.Struct, frozen=True):
    """The pending process has been started; it has the number `PairState.next_number`."""


class BecameReady(msgspec.Struct, frozen=True):
    """A process has reported that it is ready."""

    number: int


class PromotionDone(msgspec.Struct, frozen=True):
    """A process has reported that it was promoted."""

    number: int


class Settled(msgspec.Struct, frozen=True):
    """A process has lived for the settling time since it became ready or, if later, since its promotion.

    Being ready is not enough: a program that dies right afterwards would be restarted without end.
    """

    number: int


class ProgramEnded(msgspec.Struct, frozen=True):
    """A process has ended, and all its messages have been handled."""

    number: int
    code: int


class NotPromoted(msgspec.Struct, frozen=True):
    """The time for a promotion is over."""

    number: int


class Stop(msgspec.Struct, frozen=True):
    """The user wants the program to end, and all processes were signalled. Without any, ``code`` is the exit code."""

    code: int


Event = Started | BecameReady | PromotionDone | Settled | ProgramEnded | NotPromoted | Stop


class StartProcess(msgspec.Struct, frozen=True):
    """Start a process after ``after`` seconds; replaces a pending start."""

    role: ProcessRole
    after: float


class AwaitPromotion(msgspec.Struct, frozen=True):
    """Start the limited time for a process to be promoted."""

    number: int


class Supersede(msgspec.Struct, frozen=True):
    """Prevent a superseded process from writing, and end it."""

    number: int


class End(msgspec.Struct, frozen=True):
    """End a process in order."""

    number: int


class Finish(msgspec.Struct, frozen=True):
    """The program has ended, with this exit code."""

    code: int


Action = StartProcess | AwaitPromotion | Supersede | End | Finish

_ENDED_BY_US: Final = frozenset({0, 128 + 9, 128 + 15})
"""Exit codes of a superseded process that the supervisor ended: in order, by SIGKILL, by SIGTERM."""


def begin(give_up: int) -> tuple[PairState, list[Action]]:
    """Return the state before the first process is started, and the action that starts it."""
    return PairState(give_up, pending_start=ProcessRole.ACTIVE), [StartProcess(ProcessRole.ACTIVE, 0.0)]


def decide(state: PairState, event: Event) -> tuple[PairState, list[Action]]:
    """Return the state after ``event``, and the actions to take, in order."""
    match event:
        case Started():
            return _started(state), []
        case BecameReady(number):
            return _ready(state, number)
        case PromotionDone(number):
            return _promoted(state, number)
        case Settled(number):
            return _settled(state, number), []
        case ProgramEnded(number, code):
            return _ended(state, number, code)
        case NotPromoted(number):
            return _not_promoted(state, number)
        case Stop(code):
            state = replace(state, over=True, pending_start=None, code=code if state.active is None else state.code)
            return state, [] if state.members else [Finish(state.code)]


def _started(state: PairState) -> PairState:
    assert state.pending_start is not None
    number = state.next_number
    return replace(
        state,
        members=(*state.members, Member(number, state.pending_start)),
        active=number if state.pending_start is ProcessRole.ACTIVE else state.active,
        pending_start=None,
        next_number=number + 1,
    )


def _ready(state: PairState, number: int) -> tuple[PairState, list[Action]]:
    member = state.member(number)
    if member is None or member.ready or member.superseded:
        return state, []
    members = tuple(replace(m, ready=True) if m.number == number else m for m in state.members)
    state = replace(state, members=members)
    if number != state.active:
        return state, []
    if member.role is ProcessRole.STANDBY:
        return replace(state, promotion_due=True), [AwaitPromotion(number)]
    return _with_standby(state)


def _promoted(state: PairState, number: int) -> tuple[PairState, list[Action]]:
    member = state.member(number)
    if member is None or member.superseded or member.role is ProcessRole.ACTIVE:
        return state, []
    before = state.active if state.active != number else None
    members = tuple(
        replace(m, ready=True, settled=False) if m.number == number else _superseded(m) if m.number == before else m
        for m in state.members
    )
    state = replace(state, members=members, active=number, promotion_due=False)
    state, more = _with_standby(state)
    return state, [*([Supersede(before)] if before is not None else []), *more]


def _settled(state: PairState, number: int) -> PairState:
    member = state.member(number)
    if member is None or member.superseded:
        return state
    members = tuple(replace(m, settled=True) if m.number == number else m for m in state.members)
    state = replace(state, members=members)
    return replace(state, deaths=0) if number == state.active else replace(state, standby_deaths=0)


def _superseded(member: Member) -> Member:
    return replace(member, superseded=True)


def _not_promoted(state: PairState, number: int) -> tuple[PairState, list[Action]]:
    if state.active != number or not state.promotion_due:
        return state, []
    members = tuple(_superseded(m) if m.number == number else m for m in state.members)
    state = replace(state, members=members, active=None, promotion_due=False)
    state, more = _finish(state) if state.over else _next_active(state)
    return state, [End(number), *more]


def _ended(state: PairState, number: int, code: int) -> tuple[PairState, list[Action]]:
    member = state.member(number)
    if member is None:
        return state, []
    state = replace(state, members=tuple(m for m in state.members if m.number != number))
    if number == state.active:
        return _active_ended(state, code)
    if state.over:
        return state, [] if state.members else [Finish(state.code)]
    if member.superseded:
        # Its successor may be promoted before its death is known here. An end that the supervisor may have caused does
        # not count as a death.
        by_itself = code not in _ENDED_BY_US
        return replace(state, deaths=state.deaths + 1) if by_itself and not member.settled else state, []
    return _with_standby(replace(state, standby_deaths=state.standby_deaths + 1))


def _active_ended(state: PairState, code: int) -> tuple[PairState, list[Action]]:
    state = replace(state, active=None, promotion_due=False, code=code)
    if state.over or code == 0:
        return _finish(state)
    state = replace(state, deaths=state.deaths + 1)
    if state.deaths >= state.give_up:
        return _finish(replace(state, given_up=True))
    return _next_active(state)


def _finish(state: PairState) -> tuple[PairState, list[Action]]:
    """Start nothing any more, and end the living processes."""
    ends = [] if state.over else [End(member.number) for member in state.members if not member.superseded]
    state = replace(state, over=True, pending_start=None)
    return state, [*ends] if state.members else [Finish(state.code)]


def _next_active(state: PairState) -> tuple[PairState, list[Action]]:
    candidate = state.standby
    if candidate is not None:
        state = replace(state, active=candidate.number, promotion_due=candidate.ready)
        return state, [AwaitPromotion(candidate.number)] if candidate.ready else []
    return replace(state, pending_start=ProcessRole.ACTIVE), [
        StartProcess(ProcessRole.ACTIVE, restart_delay(state.deaths))
    ]


def _with_standby(state: PairState) -> tuple[PairState, list[Action]]:
    active = None if state.serving is None else state.member(state.serving)
    if state.over or active is None or not active.ready or state.standby is not None or state.pending_start is not None:
        return state, []
    return replace(state, pending_start=ProcessRole.STANDBY), [
        StartProcess(ProcessRole.STANDBY, restart_delay(max(state.deaths, state.standby_deaths)))
    ]
