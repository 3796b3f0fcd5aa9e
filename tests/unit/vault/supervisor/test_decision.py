"""What the supervisor of two processes decides, against a model of processes that do whatever they like."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mpsguard.linux.pacing import LONGEST_RESTART, restart_delay
from mpsguard.vault.supervisor import decision
from mpsguard.vault.supervisor.decision import (
    Action,
    AwaitPromotion,
    BecameReady,
    End,
    Event,
    Finish,
    NotPromoted,
    PairState,
    ProgramEnded,
    PromotionDone,
    Settled,
    Started,
    StartProcess,
    Stop,
    Supersede,
)
from mpsguard.vault.wire.supervisor_wire import ProcessRole

GIVE_UP = 3


class Supervised(RuleBasedStateMachine):
    """Processes start, say things, and end, in any order; what was decided must always make sense."""

    def __init__(self) -> None:
        super().__init__()
        self.state, actions = decision.begin(GIVE_UP)
        self.to_start: ProcessRole | None = None
        self.awaited: int | None = None
        self.roles: dict[int, ProcessRole] = {}
        """Of those that live."""
        self.ended_by_us: set[int] = set()
        self.said_ready: set[int] = set()
        self.finished: int | None = None
        self.do(actions)

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            assert self.finished is None, f"{action} after the end"
            match action:
                case StartProcess(role):
                    assert not self.state.over
                    self.to_start = role
                case AwaitPromotion(number):
                    assert self.roles[number] is ProcessRole.STANDBY
                    assert number in self.said_ready
                    self.awaited = number
                case Supersede(number) | End(number):
                    assert number in self.roles, "who has ended cannot be ended"
                    assert number != self.state.active
                    self.ended_by_us.add(number)
                case Finish(code):
                    assert not self.roles, "somebody is left behind"
                    self.finished = code
        if self.state.pending_start is None:
            self.to_start = None

    def happen(self, event: Event) -> None:
        self.state, actions = decision.decide(self.state, event)
        self.do(actions)

    @initialize()
    def first(self) -> None:
        assert self.to_start is ProcessRole.ACTIVE

    @precondition(lambda self: self.to_start is not None)
    @rule()
    def start(self) -> None:
        assert self.to_start is not None
        role, self.to_start = self.to_start, None
        self.roles[self.state.next_number] = role
        self.happen(Started())

    @precondition(lambda self: self.roles)
    @rule(data=st.data())
    def say_ready(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.roles)))
        self.said_ready.add(number)
        self.happen(BecameReady(number))

    @precondition(lambda self: self.said_ready & self.roles.keys())
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        self.happen(Settled(data.draw(st.sampled_from(sorted(self.said_ready & self.roles.keys())))))

    @precondition(lambda self: self.said_ready & self.roles.keys())
    @rule(data=st.data())
    def be_promoted(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.said_ready & self.roles.keys())))
        before = self.state
        self.happen(PromotionDone(number))
        if self.roles[number] is ProcessRole.STANDBY and number not in self.ended_by_us and not before.over:
            assert self.state.serving == number

    @precondition(lambda self: self.roles)
    @rule(data=st.data(), code=st.sampled_from([0, 1, 137]))
    def end(self, data: st.DataObject, code: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.roles)))
        was_active = number == self.state.active
        over = self.state.over
        del self.roles[number]
        self.happen(ProgramEnded(number, code))
        if was_active and code == 0 and not over:
            assert self.state.over, "the program was done"
            assert self.roles.keys() <= self.ended_by_us, "nobody goes on with a program that is done"
        if not was_active and not over:
            assert not self.state.over, "only the active process ends a program"

    @precondition(lambda self: self.awaited is not None)
    @rule()
    def not_be_promoted(self) -> None:
        assert self.awaited is not None
        number, self.awaited = self.awaited, None
        due = self.state.promotion_due and self.state.active == number
        self.happen(NotPromoted(number))
        assert not due or number in self.ended_by_us

    @precondition(lambda self: not self.state.over)
    @rule()
    def stop(self) -> None:
        self.happen(Stop(143))
        self.ended_by_us |= self.roles.keys()  # at the user's order

    @precondition(lambda self: self.finished is not None)
    @rule()
    def rest(self) -> None:
        """Nothing is left to happen."""

    @invariant()
    def there_is_one_of_each_at_most(self) -> None:
        kept_on = [number for number in self.roles if number not in self.ended_by_us]
        if not self.state.over:
            assert len(kept_on) <= 2
            assert {member.number for member in self.state.members} == self.roles.keys()
            assert (self.to_start is not None) == (self.state.pending_start is not None)

    @invariant()
    def somebody_serves_or_will(self) -> None:
        if self.state.over:
            assert self.finished is not None or self.roles
            assert self.to_start is None
            return
        active = self.state.active
        assert active in self.roles or self.to_start is ProcessRole.ACTIVE
        serving = self.state.serving
        if serving is not None and serving in self.said_ready:
            # One that serves has a standby, or gets one.
            others = self.roles.keys() - self.ended_by_us - {serving}
            assert others or self.to_start is ProcessRole.STANDBY

    @invariant()
    def who_was_superseded_serves_no_more(self) -> None:
        assert self.state.serving is None or self.state.over or self.state.serving not in self.ended_by_us


TestSupervised = Supervised.TestCase


def after(*events: Event, give_up: int = GIVE_UP) -> tuple[PairState, list[Action]]:
    """The state, and what was decided last."""
    state, actions = decision.begin(give_up)
    for event in events:
        state, actions = decision.decide(state, event)
    return state, actions


BOTH = (Started(), BecameReady(0), Started(), BecameReady(1))


def test_the_standby_is_started_when_the_active_one_is_ready() -> None:
    assert after(Started()) == (after(Started())[0], [])
    assert after(Started(), BecameReady(0))[1] == [StartProcess(ProcessRole.STANDBY, 0.0)]


def test_a_ready_standby_goes_on_and_another_one_is_started_once_it_has_been_promoted() -> None:
    state, actions = after(*BOTH, ProgramEnded(0, 137))
    assert actions == [AwaitPromotion(1)]
    assert (state.active, state.serving) == (1, None)
    state, actions = after(*BOTH, ProgramEnded(0, 137), PromotionDone(1))
    assert actions == [StartProcess(ProcessRole.STANDBY, 0.0)]
    assert state.serving == 1


def test_a_standby_on_its_way_goes_on_when_it_is_ready() -> None:
    begun = (*BOTH[:3], ProgramEnded(0, 137))
    assert after(*begun)[1] == []
    assert after(*begun, BecameReady(1))[1] == [AwaitPromotion(1)]
    assert after(*begun, BecameReady(1), PromotionDone(1))[1] == [StartProcess(ProcessRole.STANDBY, 0.0)]


def test_without_a_standby_a_new_active_process_is_started() -> None:
    assert after(Started(), BecameReady(0), ProgramEnded(0, 137))[1] == [StartProcess(ProcessRole.ACTIVE, 0.0)]
    assert after(*BOTH[:3], ProgramEnded(0, 137), ProgramEnded(1, 137))[1] == [
        StartProcess(ProcessRole.ACTIVE, restart_delay(2))
    ]


def test_a_process_that_lives_and_was_superseded_is_ended() -> None:
    state, actions = after(*BOTH, PromotionDone(1))
    assert actions == [Supersede(0), StartProcess(ProcessRole.STANDBY, 0.0)]
    assert state.serving == 1
    # It is not the program that ends with it, whatever it says.
    assert after(*BOTH, PromotionDone(1), ProgramEnded(0, 0))[1] == []
    # Nor is it a death of a standby.
    assert after(*BOTH, PromotionDone(1), ProgramEnded(0, 1), Started(), ProgramEnded(2, 1))[1] == [
        StartProcess(ProcessRole.STANDBY, 0.0)
    ]


def test_the_program_is_done_when_the_active_process_ends_with_0() -> None:
    assert after(*BOTH, ProgramEnded(0, 0))[1] == [End(1)]
    assert after(*BOTH, ProgramEnded(0, 0), ProgramEnded(1, 143))[1] == [Finish(0)]


def test_the_exit_code_is_that_of_the_active_process() -> None:
    assert after(*BOTH, Stop(143), ProgramEnded(0, 5))[1] == []
    assert after(*BOTH, Stop(143), ProgramEnded(0, 5), ProgramEnded(1, 143))[1] == [Finish(5)]
    assert after(*BOTH, Stop(143), ProgramEnded(1, 143), ProgramEnded(0, 5))[1] == [Finish(5)]


def test_it_gives_up_after_so_many_deaths_if_none_of_them_had_settled() -> None:
    deaths: list[Event] = []
    for number in range(GIVE_UP - 1):
        deaths += [Started(), ProgramEnded(number, 9)]
        assert after(*deaths)[1] == [StartProcess(ProcessRole.ACTIVE, restart_delay(number + 1))]
    last: list[Event] = [Started(), ProgramEnded(GIVE_UP - 1, 7)]
    assert after(*deaths, *last)[1] == [Finish(7)]
    number = GIVE_UP - 1
    assert after(*deaths, Started(), BecameReady(number), ProgramEnded(number, 7))[1] == [Finish(7)]
    assert after(*deaths, Started(), BecameReady(number), Settled(number), ProgramEnded(number, 7))[1] == [
        StartProcess(ProcessRole.ACTIVE, 0.0)
    ]


def test_deaths_right_after_a_promotion_count() -> None:
    """Each is followed by a standby that is ready: without a limit this would go on for good."""
    events: list[Event] = [*BOTH]
    delays = []
    for number in range(GIVE_UP - 1):
        events += [ProgramEnded(number, 1), PromotionDone(number + 1)]
        (start,) = after(*events)[1]
        assert isinstance(start, StartProcess)
        delays.append(start.after)
        events += [Started(), BecameReady(number + 2)]
    assert delays == [restart_delay(number + 1) for number in range(GIVE_UP - 1)]
    state, actions = after(*events, ProgramEnded(GIVE_UP - 1, 1))
    assert (actions, state.given_up) == ([End(GIVE_UP)], True)
    assert after(*events, ProgramEnded(GIVE_UP - 1, 1), ProgramEnded(GIVE_UP, 143))[1] == [Finish(1)]
    # One that has settled ends the row.
    assert after(*events, Settled(GIVE_UP - 1), ProgramEnded(GIVE_UP - 1, 1))[1] == [AwaitPromotion(GIVE_UP)]


def test_a_death_that_is_known_after_its_successors_promotion_counts() -> None:
    begun = (*BOTH, PromotionDone(1))
    assert after(*begun, ProgramEnded(0, 139))[0].deaths == 1
    assert after(*begun, ProgramEnded(0, 137))[0].deaths == 0
    assert after(*BOTH, Settled(0), PromotionDone(1), ProgramEnded(0, 139))[0].deaths == 0
    # To have settled as a standby is another thing.
    again = (*BOTH, Settled(1), PromotionDone(1), Started(), BecameReady(2), PromotionDone(2), ProgramEnded(1, 139))
    assert after(*again)[0].deaths == 1


def test_a_standby_that_dies_again_and_again_does_not_end_what_works() -> None:
    events: list[Event] = [Started(), BecameReady(0)]
    delays = []
    for number in range(1, 12):
        events += [Started(), ProgramEnded(number, 1)]
        (start,) = after(*events)[1]
        assert isinstance(start, StartProcess)
        assert start.role is ProcessRole.STANDBY
        delays.append(start.after)
    assert delays == sorted(delays)
    assert delays[0] == 0.0
    assert delays[-1] == LONGEST_RESTART


def test_a_standby_that_is_not_promoted_in_time_is_ended_and_replaced() -> None:
    """As after a session that was left in order by a process that then failed."""
    assert after(*BOTH, ProgramEnded(0, 1), NotPromoted(1))[1] == [End(1), StartProcess(ProcessRole.ACTIVE, 0.0)]
    assert after(*BOTH, ProgramEnded(0, 1), PromotionDone(1), NotPromoted(1))[1] == []


@pytest.mark.parametrize("late", [BecameReady(0), PromotionDone(0), ProgramEnded(0, 1), NotPromoted(0)])
def test_what_comes_from_the_dead_changes_nothing(late: Event) -> None:
    state, _ = after(*BOTH, ProgramEnded(0, 1), PromotionDone(1))
    assert decision.decide(state, late) == (state, [])
