"""Owns the workers: carries out what `schedule` decides."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.linux.descriptors import memfd
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.pool import schedule
from mpsguard.pool.errors import PoolError
from mpsguard.pool.messages import WorkerInfo
from mpsguard.pool.metrics import PoolMetrics, StartOutcome
from mpsguard.pool.schedule import (
    Action,
    AnswerProgram,
    Assign,
    EndWorker,
    Event,
    KillWorker,
    Phase,
    PoolCloses,
    PoolPolicy,
    Prepared,
    Refuse,
    Requested,
    ScheduleState,
    Spawn,
    StartCompleted,
    StartFailed,
    TimePassed,
    Withdrawn,
    WorkerEnded,
    WorkerLost,
)
from mpsguard.pool.worker_messages import WorkerAssignment, WorkerFailed, WorkerPrepared, WorkerStarted, encode
from mpsguard.pool.worker_process import WorkerProcess

_LAST_WORDS: Final = 16
"""Messages of a worker that has ended; it has a few to say."""


class _Request:
    """A start that a program waits for, and the image's memory as long as a worker has it."""

    def __init__(self, assignment: WorkerAssignment, fd: int | None, release: Callable[[], None]) -> None:
        self.assignment = assignment
        self.fd = fd
        self.release = release
        self.answer: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()


class WorkerPool:
    """Owns the processes and their requests."""

    def __init__(self, prepare: str, policy: PoolPolicy, pool: Path, metrics: PoolMetrics) -> None:
        """Begin without workers.

        Args:
            prepare: what workers execute first, ``module:function``.
            policy: how many there are.
            pool: socket of this pool, at which workers find it.
            metrics: what is counted.
        """
        self._prepare = prepare
        self._pool = pool
        self._metrics = metrics
        self._state = ScheduleState(policy)
        self._workers: dict[int, WorkerProcess] = {}
        self._requests: dict[int, _Request] = {}
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()

    def open(self) -> None:
        """Start the first workers."""
        self._on(TimePassed())

    async def start(self, assignment: WorkerAssignment, fd: int | None, release: Callable[[], None]) -> socket.socket:
        """Return a connection, owned by the caller, to a worker that has started an image.

        Args:
            assignment: what to start.
            fd: of the image's memory, valid until ``release`` is called; None if the worker gets none.
            release: called once, when no worker has the image any more.

        Raises:
            PoolError: the worker says that it cannot, or workers died over it.
        """
        loop = asyncio.get_running_loop()
        began, number = loop.time(), next(self._numbers)
        outcome = StartOutcome.REFUSED
        request = self._requests[number] = _Request(assignment, fd, release)
        self._on(Requested(number))
        try:
            connection = await asyncio.shield(request.answer)
            outcome = StartOutcome.STARTED
            return connection
        except asyncio.CancelledError:
            outcome = StartOutcome.WITHDRAWN
            if request.answer.done() and request.answer.exception() is None:
                request.answer.result().close()
            else:
                self._on(Withdrawn(number))
            raise
        finally:
            self._metrics.start_ended(outcome, loop.time() - began)

    def info(self) -> tuple[WorkerInfo, ...]:
        """Return the workers."""
        return tuple(
            WorkerInfo(self._workers[worker.number].pid, worker.phase)
            for worker in self._state.workers
            if worker.number in self._workers
        )

    async def close(self) -> tuple[int, ...]:
        """End all workers, by SIGKILL after their grace.

        Returns:
            Pids of those that SIGKILL has not ended within another grace, such as one that a driver does not let go.
        """
        self._on(PoolCloses())
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * self._state.policy.grace):
                while self._state.workers:
                    self._changed.clear()
                    await self._changed.wait()
        if self._timer is not None:
            self._timer.cancel()
        return tuple(worker.pid for worker in self._workers.values())

    def _on(self, event: Event) -> None:
        """Decide on an event, act, and be called again when something is due."""
        loop = asyncio.get_running_loop()
        self._state, actions = schedule.decide(self._state, event, loop.time())
        for action in actions:
            self._act(action)
        wanted = self._state.requests
        for number in [each for each in self._requests if each not in wanted]:
            self._requests.pop(number).release()
        if self._timer is not None:
            self._timer.cancel()
        due = schedule.next_time(self._state)
        self._timer = None if due is None else loop.call_at(due, self._on, TimePassed())
        self._changed.set()

    def _act(self, action: Action) -> None:
        match action:
            case Spawn(number):
                self._spawn(number)
            case Assign(number, request):
                self._assign(number, request)
            case AnswerProgram(number, request):
                worker, waiting = self._workers[number], self._requests[request].answer
                if worker.answer is not None and not waiting.done():
                    waiting.set_result(worker.answer)
                    worker.answer = None
            case Refuse(request, reason):
                waiting = self._requests[request].answer
                if not waiting.done():
                    waiting.set_exception(PoolError(reason))
            case EndWorker(number):
                if (ending := self._workers.get(number)) is not None:
                    ending.end()
                    ending.drop_answer()
            case KillWorker(number):
                if (killed := self._workers.get(number)) is not None:
                    killed.kill()

    def _spawn(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            worker = self._workers[number] = WorkerProcess(self._prepare, self._pool)
        except OSError:
            # No process or descriptor left: as a death in preparation, it is tried again later.
            loop.call_soon(self._on, WorkerEnded(number))
            return
        loop.add_reader(worker.channel.fileno(), self._heard, number)
        loop.add_reader(worker.pidfd, self._ended, number)

    def _assign(self, number: int, request: int) -> None:
        worker, start = self._workers[number], self._requests[request]
        try:
            worker.answer, theirs = socket.socketpair()
            with theirs:
                memory = () if start.fd is None else (memfd.read_only(start.fd),)
                try:
                    worker.send(encode(start.assignment), (theirs.fileno(), *memory))
                finally:
                    close_all(memory)
        except OSError as error:
            # No descriptor left: the worker gets nothing and could not be told apart from one that hangs.
            reason = f"the pool: {error.strerror}"
            asyncio.get_running_loop().call_soon(self._on, StartFailed(number, reason))

    def _heard(self, number: int) -> bool:
        """Handle a worker's next message; return whether there may be another one."""
        worker = self._workers[number]
        try:
            message = worker.receive()
        except BlockingIOError:
            return False
        except msgspec.DecodeError:
            message = None
        match message:
            case WorkerPrepared():
                self._on(Prepared(number))
            case WorkerStarted():
                self._on(StartCompleted(number))
            case WorkerFailed(reason):
                self._on(StartFailed(number, reason))
            case None:
                # It ends, or it does not follow the protocol: then it has to.
                asyncio.get_running_loop().remove_reader(worker.channel.fileno())
                self._count_repeated(number)
                self._on(WorkerLost(number))
        return message is not None

    def _ended(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        worker = self._workers[number]
        loop.remove_reader(worker.pidfd)
        # What its group leaves could go on speaking in its place.
        worker.kill()
        for _ in range(_LAST_WORDS):
            if not self._heard(number):
                break
        loop.remove_reader(worker.channel.fileno())
        self._count_repeated(number)
        del self._workers[number]
        worker.reap()
        self._on(WorkerEnded(number))

    def _count_repeated(self, number: int) -> None:
        """Count a worker that is lost, if it was in the midst of a start."""
        known = self._state.worker(number)
        if known is not None and known.phase is Phase.STARTING:
            self._metrics.repeated()
