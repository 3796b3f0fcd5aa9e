"""Decides when workers are started, assigned and ended: a pure function of the workers, the requests and an event.

A worker prepares itself, waits, is assigned to one request, serves it, and ends: none is assigned twice.
"""

from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from mpsguard.linux.pacing import restart_delay

MOST_TRIES: Final = 3
"""Workers that may end while they start one request."""
SETTLED: Final = 10.0
"""Seconds after which the death of a waiting worker is no reason to wait with the next one."""


class Phase(StrEnum):
    """What a worker does."""

    PREPARING = "preparing"
    WAITING = "waiting"
    STARTING = "starting"
    SERVING = "serving"
    ENDING = "ending"


_WARM: Final = frozenset({Phase.PREPARING, Phase.WAITING})
_AT_WORK: Final = frozenset({Phase.STARTING, Phase.SERVING})


class PoolPolicy(msgspec.Struct, frozen=True):
    """Sizes of a pool, and its patience in seconds."""

    minimum: int = 1
    """Workers that wait, or prepare themselves to, also if nothing is requested."""
    maximum: int = 4
    """Processes at most, with those that serve."""
    idle: float = 300.0
    """How long a worker above the minimum waits for a request."""
    preparation: float = 300.0
    """How long a preparation may take."""
    grace: float = 10.0
    """From the wish that a worker ends to SIGKILL."""


class Worker(msgspec.Struct, frozen=True):
    """A process that has not ended."""

    number: int
    phase: Phase
    since: float
    """When the phase began."""
    request: int | None = None
    """What it was assigned to."""


class Waiting(msgspec.Struct, frozen=True):
    """A request that no worker has."""

    request: int
    tries: int = 0
    """Workers that ended while they started it."""


class ScheduleState(msgspec.Struct, frozen=True):
    """The complete state; times are of one monotonic clock, in seconds."""

    policy: PoolPolicy
    workers: tuple[Worker, ...] = ()
    """The oldest first."""
    waiting: tuple[Waiting, ...] = ()
    """The oldest first."""
    tries: tuple[tuple[int, int], ...] = ()
    """Requests that workers have, with the workers that ended over them before."""
    next_number: int = 0
    deaths: int = 0
    """Consecutive deaths of workers that had nothing to do yet."""
    not_before: float = 0.0
    """When the next process may be started."""
    closing: bool = False

    def worker(self, number: int) -> Worker | None:
        """Return the worker with that number, or None."""
        return next((worker for worker in self.workers if worker.number == number), None)

    @property
    def requests(self) -> frozenset[int]:
        """The requests that wait, or that a worker has."""
        assigned = {worker.request for worker in self.workers if worker.request is not None}
        return frozenset(assigned | {waiting.request for waiting in self.waiting})


class Requested(msgspec.Struct, frozen=True):
    """A program wants a worker."""

    request: int


class Withdrawn(msgspec.Struct, frozen=True):
    """The program does not want it any more, before it had an answer."""

    request: int


class Prepared(msgspec.Struct, frozen=True):
    """A worker waits from now on."""

    number: int


class StartCompleted(msgspec.Struct, frozen=True):
    """A worker has mapped its image, and serves from now on."""

    number: int


class StartFailed(msgspec.Struct, frozen=True):
    """A worker cannot start what it was assigned to, and says why."""

    number: int
    reason: str


class WorkerLost(msgspec.Struct, frozen=True):
    """A worker has ended its channel, or broken the protocol; its process is to end."""

    number: int


class WorkerEnded(msgspec.Struct, frozen=True):
    """A worker's process has ended."""

    number: int


class TemplateEnded(msgspec.Struct, frozen=True):
    """The process that was to fork these workers has ended."""

    numbers: tuple[int, ...]


class TimePassed(msgspec.Struct, frozen=True):
    """It is the time that `next_time` gave."""


class PoolCloses(msgspec.Struct, frozen=True):
    """The pool ends."""


Event = (
    Requested
    | Withdrawn
    | Prepared
    | StartCompleted
    | StartFailed
    | WorkerLost
    | WorkerEnded
    | TemplateEnded
    | TimePassed
    | PoolCloses
)


class Spawn(msgspec.Struct, frozen=True):
    """Start a process."""

    number: int


class Assign(msgspec.Struct, frozen=True):
    """Give a request to a worker."""

    number: int
    request: int


class AnswerProgram(msgspec.Struct, frozen=True):
    """Tell the program that the worker serves it."""

    number: int
    request: int


class Refuse(msgspec.Struct, frozen=True):
    """Tell the program that there will be no worker for it."""

    request: int
    reason: str


class EndWorker(msgspec.Struct, frozen=True):
    """Tell a worker to end."""

    number: int


class KillWorker(msgspec.Struct, frozen=True):
    """End a worker by SIGKILL."""

    number: int


Action = Spawn | Assign | AnswerProgram | Refuse | EndWorker | KillWorker


def decide(state: ScheduleState, event: Event, now: float) -> tuple[ScheduleState, list[Action]]:
    """Return the state after ``event``, and the actions to take, in order. Unexpected events change nothing."""
    actions: list[Action] = []
    match event:
        case Requested(request):
            if state.closing:
                return state, [Refuse(request, "the pool ends")]
            state = replace(state, waiting=(*state.waiting, Waiting(request)))
        case Withdrawn(request):
            state, actions = _withdrawn(state, request, now)
        case Prepared(number):
            state = _moved(state, number, Phase.PREPARING, Phase.WAITING, now)
        case StartCompleted(number):
            state, actions = _started(state, number, now)
        case StartFailed(number, reason):
            state, actions = _start_failed(state, number, reason, now)
        case WorkerLost(number):
            state, actions = _lost(state, number, now)
        case WorkerEnded(number):
            state, actions = _ended(state, number, now)
        case TemplateEnded(numbers):
            # One death, however many it was to fork.
            deaths = state.deaths
            for number in numbers:
                state, more = _ended(replace(state, deaths=deaths), number, now)
                actions += more
        case TimePassed():
            pass
        case PoolCloses():
            refused = [Refuse(waiting.request, "the pool ends") for waiting in state.waiting]
            state, actions = _all_end(replace(state, closing=True, waiting=()), now)
            actions = [*refused, *actions]
    state, more = _proceed(state, now)
    return state, [*actions, *more]


def next_time(state: ScheduleState) -> float | None:
    """Return when `TimePassed` is due, unless something happens before; None: never."""
    policy = state.policy
    due = []
    for worker in state.workers:
        if worker.phase is Phase.PREPARING:
            due.append(worker.since + policy.preparation)
        elif worker.phase is Phase.ENDING:
            due.append(worker.since + policy.grace)
    due += [worker.since + policy.idle for worker in _surplus(state)]
    if _missing(state) > 0:
        due.append(state.not_before)
    return min(due, default=None)


def _proceed(state: ScheduleState, now: float) -> tuple[ScheduleState, list[Action]]:
    """Assign, end, kill and start what is due."""
    actions: list[Action] = []
    for worker in state.workers:
        if worker.phase is Phase.WAITING and state.waiting:
            first, *rest = state.waiting
            state = _changed(state, replace(worker, phase=Phase.STARTING, since=now, request=first.request))
            state = replace(state, waiting=tuple(rest), tries=(*state.tries, (first.request, first.tries)))
            actions.append(Assign(worker.number, first.request))
    for worker in _surplus(state):
        if worker.since + state.policy.idle <= now:
            state = _changed(state, replace(worker, phase=Phase.ENDING, since=now))
            actions.append(EndWorker(worker.number))
    for worker in state.workers:
        patience = {Phase.PREPARING: state.policy.preparation, Phase.ENDING: state.policy.grace}.get(worker.phase)
        if patience is not None and worker.since + patience <= now:
            # Its death in preparation counts; in any case it is asked for again only after the same time.
            state = _changed(state, replace(worker, since=now))
            actions.append(KillWorker(worker.number))
    missing = _missing(state) if state.not_before <= now else 0
    for _ in range(min(missing, 1) if state.deaths else missing):
        number = state.next_number
        state = replace(state, workers=(*state.workers, Worker(number, Phase.PREPARING, now)), next_number=number + 1)
        actions.append(Spawn(number))
    return state, actions


def _missing(state: ScheduleState) -> int:
    """Return how many processes should be started, as soon as that is allowed."""
    if state.closing:
        return 0
    warm = sum(worker.phase in _WARM for worker in state.workers)
    if state.deaths and any(worker.phase is Phase.PREPARING for worker in state.workers):
        # One at a time, until one has shown that it lives.
        return 0
    wanted = state.policy.minimum + len(state.waiting) - warm
    return max(0, min(wanted, state.policy.maximum - len(state.workers)))


def _surplus(state: ScheduleState) -> list[Worker]:
    """Return the waiting workers above the minimum that are to end first, those that wait the longest."""
    warm = sum(worker.phase in _WARM for worker in state.workers)
    waiting = sorted((w for w in state.workers if w.phase is Phase.WAITING), key=lambda worker: worker.since)
    return waiting[: max(0, warm - state.policy.minimum)]


def _changed(state: ScheduleState, worker: Worker) -> ScheduleState:
    workers = tuple(worker if each.number == worker.number else each for each in state.workers)
    return replace(state, workers=workers)


def _moved(state: ScheduleState, number: int, before: Phase, after: Phase, now: float) -> ScheduleState:
    worker = state.worker(number)
    if worker is None or worker.phase is not before:
        return state
    return _changed(state, replace(worker, phase=after, since=now))


def _withdrawn(state: ScheduleState, request: int, now: float) -> tuple[ScheduleState, list[Action]]:
    state = replace(state, waiting=tuple(waiting for waiting in state.waiting if waiting.request != request))
    for worker in state.workers:
        if worker.request == request and worker.phase is Phase.STARTING:
            return _changed(state, replace(worker, phase=Phase.ENDING, since=now)), [EndWorker(worker.number)]
    return state, []


def _started(state: ScheduleState, number: int, now: float) -> tuple[ScheduleState, list[Action]]:
    worker = state.worker(number)
    if worker is None or worker.phase is not Phase.STARTING or worker.request is None:
        return state, []
    state = replace(_moved(state, number, Phase.STARTING, Phase.SERVING, now), deaths=0, not_before=now)
    return state, [AnswerProgram(number, worker.request)]


def _start_failed(state: ScheduleState, number: int, reason: str, now: float) -> tuple[ScheduleState, list[Action]]:
    worker = state.worker(number)
    if worker is None or worker.phase is not Phase.STARTING or worker.request is None:
        return state, []
    state = _moved(state, number, Phase.STARTING, Phase.ENDING, now)
    return state, [Refuse(worker.request, reason), EndWorker(number)]


def _lost(state: ScheduleState, number: int, now: float) -> tuple[ScheduleState, list[Action]]:
    worker = state.worker(number)
    if worker is None or worker.phase is Phase.ENDING:
        return state, []
    # What it was assigned to counts as its own until it has ended: it may have the image's memory.
    state = _changed(state, replace(worker, phase=Phase.ENDING, since=now))
    state, actions = _left(state, worker, now)
    return state, [EndWorker(number), *actions]


def _ended(state: ScheduleState, number: int, now: float) -> tuple[ScheduleState, list[Action]]:
    worker = state.worker(number)
    if worker is None:
        return state, []
    state = replace(state, workers=tuple(each for each in state.workers if each.number != number))
    return _left(state, worker, now)


def _left(state: ScheduleState, worker: Worker, now: float) -> tuple[ScheduleState, list[Action]]:
    """Return what follows when a worker, as it was, does no more work; ``state`` is without it, or has it ending."""
    tries = dict(state.tries).get(worker.request, 0) + 1 if worker.request is not None else 0
    at_work = {each.request for each in state.workers if each.phase in _AT_WORK}
    state = replace(state, tries=tuple(each for each in state.tries if each[0] in at_work))
    if worker.phase is Phase.PREPARING or (worker.phase is Phase.WAITING and now < worker.since + SETTLED):
        deaths = state.deaths + 1
        return replace(state, deaths=deaths, not_before=now + restart_delay(deaths)), []
    if worker.phase is not Phase.STARTING or worker.request is None:
        return state, []
    if tries >= MOST_TRIES or state.closing:
        return state, [Refuse(worker.request, f"{tries} workers ended while they started it")]
    return replace(state, waiting=(Waiting(worker.request, tries), *state.waiting)), []


def _all_end(state: ScheduleState, now: float) -> tuple[ScheduleState, list[Action]]:
    ending: list[Action] = []
    for worker in state.workers:
        if worker.phase is Phase.ENDING:
            continue
        if worker.phase is Phase.STARTING and worker.request is not None:
            ending.append(Refuse(worker.request, "the pool ends"))
        ending.append(EndWorker(worker.number))
        state = _changed(state, replace(worker, phase=Phase.ENDING, since=now))
    return state, ending
