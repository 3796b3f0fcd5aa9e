"""The schedule of workers under random events: sizes, one request for each worker, one answer for each request."""

from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mpsguard.images.pool import schedule
from mpsguard.images.pool.schedule import (
    MOST_TRIES,
    Action,
    AnswerProgram,
    Assign,
    EndWorker,
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


class ScheduleMachine(RuleBasedStateMachine):
    """Real processes and programs, as far as the schedule sees them."""

    @initialize(minimum=st.integers(0, 3), more=st.integers(0, 3), idle=st.sampled_from([0.0, 1.0, 5.0]))
    def begin(self, minimum: int, more: int, idle: float) -> None:
        policy = PoolPolicy(minimum=minimum, maximum=max(1, minimum + more), idle=idle, preparation=20.0, grace=3.0)
        self.state = ScheduleState(policy)
        self.now = 100.0
        self.alive: set[int] = set()
        self.spawned: set[int] = set()
        self.assigned: dict[int, int] = {}
        self.serving: set[int] = set()
        self.lost: set[int] = set()
        self.open: set[int] = set()
        self.deaths_over: dict[int, int] = {}
        self.requests = 0
        self.on(TimePassed())

    def on(self, event: Any) -> list[Action]:
        self.state, actions = schedule.decide(self.state, event, self.now)
        for action in actions:
            match action:
                case Spawn(number):
                    assert number not in self.spawned
                    assert not self.state.closing
                    self.spawned.add(number)
                    self.alive.add(number)
                case Assign(number, request):
                    # A worker that had a request never gets another one.
                    assert number in self.alive - self.lost
                    assert number not in self.assigned
                    assert request in self.open
                    self.assigned[number] = request
                case AnswerProgram(number, request):
                    assert self.assigned[number] == request
                    self.open.remove(request)
                    self.serving.add(number)
                case Refuse(request, _):
                    self.open.remove(request)
                case EndWorker(number) | KillWorker(number):
                    assert number in self.alive
        return actions

    def of(self, phase: Phase) -> list[int]:
        return [worker.number for worker in self.state.workers if worker.phase is phase]

    @rule()
    def request(self) -> None:
        self.requests += 1
        self.open.add(self.requests)
        self.on(Requested(self.requests))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.open)))
        self.open.remove(request)
        self.on(Withdrawn(request))

    @precondition(lambda self: self.of(Phase.PREPARING))
    @rule(data=st.data())
    def prepared(self, data: st.DataObject) -> None:
        self.on(Prepared(data.draw(st.sampled_from(self.of(Phase.PREPARING)))))

    @precondition(lambda self: self.of(Phase.STARTING))
    @rule(data=st.data(), good=st.booleans())
    def started(self, data: st.DataObject, good: bool) -> None:
        number = data.draw(st.sampled_from(self.of(Phase.STARTING)))
        self.on(StartCompleted(number) if good else StartFailed(number, "no"))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def death(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.remove(number)
        self.leave(number, WorkerEnded)

    @precondition(lambda self: self.of(Phase.PREPARING))
    @rule(data=st.data())
    def template_ends(self, data: st.DataObject) -> None:
        numbers = data.draw(st.lists(st.sampled_from(self.of(Phase.PREPARING)), unique=True, min_size=1))
        self.alive -= set(numbers)
        deaths = self.state.deaths
        self.on(TemplateEnded(tuple(numbers)))
        assert self.state.deaths == deaths + 1

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def loss(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.alive)))
        self.leave(number, WorkerLost)
        assert number in self.of(Phase.ENDING)

    def leave(self, number: int, event: Any) -> None:
        request = self.assigned.get(number)
        if request not in self.open or number in self.lost:
            self.lost.add(number)
            self.on(event(number))
            return
        self.lost.add(number)
        assert request is not None
        deaths = self.deaths_over[request] = self.deaths_over.get(request, 0) + 1
        self.on(event(number))
        # The start is repeated, and not for ever.
        assert (request in self.open) is (deaths < MOST_TRIES)

    @rule(number=st.integers(0, 30), event=st.sampled_from([Prepared, StartCompleted, WorkerLost, WorkerEnded]))
    def unexpected(self, number: int, event: Any) -> None:
        if number not in self.alive:
            before = self.state
            self.on(event(number))
            assert self.state == before

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0, 40.0]))
    def time(self, seconds: float) -> None:
        end = self.now + seconds
        for _ in range(200):
            due = schedule.next_time(self.state)
            if due is None or due > end:
                self.now = end
                return
            # Nothing that is due at once again: the pool would be busy with it.
            assert due >= self.now
            self.now = due
            assert self.on(TimePassed())
        raise AssertionError("busy")

    @precondition(lambda self: len(self.spawned) > 8)
    @rule()
    def close(self) -> None:
        self.on(PoolCloses())
        assert not self.open
        assert all(worker.phase is Phase.ENDING for worker in self.state.workers)

    @invariant()
    def sizes(self) -> None:
        if not hasattr(self, "state"):
            return
        state, policy = self.state, self.state.policy
        assert {worker.number for worker in state.workers} == self.alive
        assert len(self.alive) <= policy.maximum
        warm = len(self.of(Phase.PREPARING)) + len(self.of(Phase.WAITING))
        if not state.closing and not state.deaths:
            assert warm >= policy.minimum or len(self.alive) == policy.maximum
        assert not (state.waiting and self.of(Phase.WAITING))
        assert self.open <= state.requests

    @invariant()
    def idle_workers_end(self) -> None:
        if not hasattr(self, "state"):
            return
        idle = [
            worker
            for worker in self.state.workers
            if worker.phase is Phase.WAITING and worker.since + self.state.policy.idle + 40.0 <= self.now
        ]
        assert len(idle) <= self.state.policy.minimum


TestSchedule = ScheduleMachine.TestCase
TestSchedule.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


def test_a_preparation_that_always_fails_is_tried_ever_more_rarely() -> None:
    state, now, starts = ScheduleState(PoolPolicy(minimum=4, maximum=8)), 0.0, []
    state, actions = schedule.decide(state, TimePassed(), now)
    assert len(actions) == 4
    pending = [action.number for action in actions if isinstance(action, Spawn)]
    while now < 300.0:
        for number in pending:
            state, actions = schedule.decide(state, WorkerEnded(number), now)
            starts += [now for action in actions if isinstance(action, Spawn)]
        pending = [worker.number for worker in state.workers]
        if not pending:
            due = schedule.next_time(state)
            assert due is not None
            now = due
            state, actions = schedule.decide(state, TimePassed(), now)
            starts += [now for action in actions if isinstance(action, Spawn)]
            pending = [worker.number for worker in state.workers]
    assert len(starts) < 25
    assert starts[-1] - starts[-2] == 30.0


def test_the_end_of_a_template_is_one_death_for_all_that_it_was_to_fork() -> None:
    state, _ = schedule.decide(ScheduleState(PoolPolicy(minimum=8, maximum=8)), TimePassed(), 0.0)
    state, actions = schedule.decide(state, TemplateEnded(tuple(range(8))), 1.0)
    assert actions == [Spawn(8)]
    state, actions = schedule.decide(state, TemplateEnded((8,)), 2.0)
    assert actions == []
    assert schedule.next_time(state) == 2.25


def test_a_start_that_succeeds_ends_the_wait_after_deaths() -> None:
    state, _ = schedule.decide(ScheduleState(PoolPolicy(minimum=2, maximum=3)), Requested(1), 0.0)
    for event in (WorkerEnded(0), WorkerEnded(1), Prepared(2)):
        state, actions = schedule.decide(state, event, 0.0)
    assert actions == [Assign(2, 1)]
    assert state.not_before == 0.25
    _, actions = schedule.decide(state, StartCompleted(2), 0.1)
    assert actions == [AnswerProgram(2, 1), Spawn(3), Spawn(4)]
