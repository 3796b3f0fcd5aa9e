"""Owns the workers: carries out what `schedule` decides."""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from mpsguard.images.pool import schedule
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.messages import WorkerInfo
from mpsguard.images.pool.metrics import PoolMetrics, StartOutcome
from mpsguard.images.pool.schedule import (
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
    TemplateEnded,
    TimePassed,
    Withdrawn,
    WorkerEnded,
    WorkerLost,
)
from mpsguard.images.pool.template_messages import WorkerForked
from mpsguard.images.pool.template_process import ForkedProcess, TemplateProcess
from mpsguard.images.pool.worker_messages import WorkerAssignment, WorkerFailed, WorkerPrepared, WorkerStarted, encode
from mpsguard.images.pool.worker_process import Process, WorkerProcess
from mpsguard.linux.descriptors import memfd
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.processes import process_exit

_LAST_WORDS: Final = 16
"""Messages of a worker that has ended; it has a few to say."""


def _tell_of_death(pid: int) -> None:
    """Say how a worker ended that was preparing itself, and was not reaped yet: the pool would try in silence.

    Nothing of exit code 1: Python has printed the exception.
    """
    status = process_exit.status_before_reaping(pid)
    if status.exit_code == 1:
        return
    how = "" if status.exit_code is None else f": exit code {status.exit_code}"
    if status.signal is not None:
        how = f": {signal.strsignal(status.signal)} (signal {status.signal})"
    # There is no such stream if the pool was started without, and no reader at the other end of a pipe.
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"mpsguard pool: worker {pid} ended while it prepared itself{how}\n")
        sys.stderr.flush()


class _Request:
    """A start that a program waits for, and the image's memory as long as a worker has it."""

    def __init__(self, assignment: WorkerAssignment, fd: int | None, release: Callable[[], None]) -> None:
        self.assignment = assignment
        self.fd = fd
        self.release = release
        self.answer: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()


class WorkerPool:
    """Owns the processes and their requests."""

    def __init__(
        self, prepare: str, policy: PoolPolicy, pool: Path, metrics: PoolMetrics, modules: Sequence[str] = ()
    ) -> None:
        """Begin without workers.

        Args:
            prepare: what workers execute first, ``module:function``.
            policy: how many there are.
            modules: what one process imports for all workers; without any, each worker does its own imports.
            pool: socket of this pool, at which workers find it.
            metrics: what is counted.
        """
        self._prepare = prepare
        self._modules = tuple(modules)
        self._pool = pool
        self._metrics = metrics
        self._state = ScheduleState(policy)
        self._workers: dict[int, WorkerProcess] = {}
        self._template: TemplateProcess | None = None
        self._requests: dict[int, _Request] = {}
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()

    def open(self) -> None:
        """Start the first workers."""
        if self._modules:
            # Also without a worker that waits: the first request has less to wait for.
            with suppress(OSError):
                self._template_now()
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
        found = []
        for worker in self._state.workers:
            known = self._workers.get(worker.number)
            # One that is still to be forked has no pid.
            if known is not None and known.process is not None:
                found.append(WorkerInfo(known.process.pid, worker.phase))
        return tuple(found)

    async def close(self) -> tuple[int, ...]:
        """End all workers, by SIGKILL after their grace, and the template.

        Returns:
            Pids of those that SIGKILL has not ended within another grace, such as one that a driver does not let go.
        """
        self._on(PoolCloses())
        if any(worker.process is None for worker in self._workers.values()) and self._template is not None:
            # Imports go on for long, and there is nothing to fork any more.
            self._template.process.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * self._state.policy.grace):
                await self._none_left(lambda: bool(self._state.workers))
                if self._template is not None:
                    self._template.process.kill()
                await self._none_left(lambda: self._template is not None)
        if self._timer is not None:
            self._timer.cancel()
        left = [worker.process for worker in self._workers.values() if worker.process is not None]
        if self._template is not None:
            left.append(self._template.process)
        return tuple(process.pid for process in left)

    async def _none_left(self, is_left: Callable[[], bool]) -> None:
        while is_left():
            self._changed.clear()
            await self._changed.wait()

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
                    if killed.process is None and self._template is not None:
                        # It does not come to it: its imports, or a function that a fork calls, do not end.
                        self._template.process.kill()

    def _spawn(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            if self._modules:
                worker = WorkerProcess.forked(self._template_now(), number)
            else:
                worker = WorkerProcess.executed(self._prepare, self._pool)
        except OSError:
            # No process or descriptor left: as a death in preparation, it is tried again later.
            loop.call_soon(self._on, WorkerEnded(number))
            return
        self._workers[number] = worker
        if worker.process is not None:
            self._watch(number, worker, worker.process)

    def _watch(self, number: int, worker: WorkerProcess, process: Process) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(worker.channel.fileno(), self._heard, number)
        loop.add_reader(process.pidfd, self._ended, number)

    # --- the template

    def _template_now(self) -> TemplateProcess:
        """Return the template, started if there is none; raise OSError."""
        if self._template is None:
            found = self._template = TemplateProcess(self._prepare, self._modules, self._pool)
            loop = asyncio.get_running_loop()
            loop.add_reader(found.channel.fileno(), self._template_heard, found)
            loop.add_reader(found.process.pidfd, self._template_ended, found)
        return self._template

    def _template_heard(self, template: TemplateProcess) -> bool:
        """Handle the template's next message; return whether there may be another one."""
        try:
            message = template.channel.receive()
        except BlockingIOError:
            return False
        if message is None:
            asyncio.get_running_loop().remove_reader(template.channel.fileno())
            template.process.kill()
            return False
        self._forked(template, message)
        return True

    def _forked(self, template: TemplateProcess, message: WorkerForked) -> None:
        worker = self._workers.get(message.number)
        if worker is None or worker.process is not None:
            return
        try:
            process = ForkedProcess(template, message.number, message.pid)
        except OSError:
            self._workers.pop(message.number).reap()
            template.reap_worker(message.number)
            self._on(WorkerEnded(message.number))
            return
        worker.come(process)
        self._watch(message.number, worker, process)

    def _template_ended(self, template: TemplateProcess) -> None:
        """Have another one started with the next worker; those that are there work on."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(template.process.pidfd)
        while self._template_heard(template):
            pass
        loop.remove_reader(template.channel.fileno())
        template.reap()
        self._template = None
        numbers = tuple(number for number, worker in self._workers.items() if worker.process is None)
        for number in numbers:
            self._workers.pop(number).reap()
        self._on(TemplateEnded(numbers))

    # --- what workers say

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
            message = worker.channel.receive()
        except BlockingIOError:
            return False
        match message:
            case WorkerPrepared():
                worker.is_prepared = True
                self._on(Prepared(number))
            case WorkerStarted():
                self._on(StartCompleted(number))
            case WorkerFailed(reason):
                self._on(StartFailed(number, reason))
            case None:
                asyncio.get_running_loop().remove_reader(worker.channel.fileno())
                self._count_repeated(number)
                self._on(WorkerLost(number))
        return message is not None

    def _ended(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        worker = self._workers[number]
        assert worker.process is not None
        loop.remove_reader(worker.process.pidfd)
        # What its group leaves could go on speaking in its place.
        worker.kill()
        for _ in range(_LAST_WORDS):
            if not self._heard(number):
                break
        loop.remove_reader(worker.channel.fileno())
        self._count_repeated(number)
        if not worker.is_prepared and not self._state.closing:
            _tell_of_death(worker.process.pid)
        del self._workers[number]
        worker.reap()
        self._on(WorkerEnded(number))

    def _count_repeated(self, number: int) -> None:
        """Count a worker that is lost, if it was in the midst of a start."""
        known = self._state.worker(number)
        if known is not None and known.phase is Phase.STARTING:
            self._metrics.repeated()
