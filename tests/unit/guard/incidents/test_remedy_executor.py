"""The executor, under any interleaving of incidents, verdicts, deaths, failures and hangs; the clock is the test's."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mpsguard.guard.config import Remedies, RemedyName, Step
from mpsguard.guard.incident import Confidence, FaultClass, Ground, Incident, Suspect
from mpsguard.guard.incidents.remedy_executor import RemedyExecutor, RemedyLog
from mpsguard.guard.incidents.remedy_resolver import DomainRemedies, RemedyResolver
from mpsguard.guard.remedies.policy import Decision, Standing, Verdict
from mpsguard.guard.remedies.remedy import Applied, Failed, NotNeeded, Observed, Outcome, RemedyCase
from mpsguard.linux.identity import ProcessKey
from tests.harness.examples import examples

PEOPLE = [ProcessKey(100 + number, number) for number in range(4)]
STEPS = {
    FaultClass.MMU: Step("terminate", "enforce"),
    FaultClass.SM: Step("terminate", "enforce", "likely"),
    FaultClass.ENGINE: Step("terminate", "observe"),
    FaultClass.PROCESS: Step("terminate", "off"),
}
REMEDIES = Remedies(**{fault.value: (step,) for fault, step in STEPS.items()}, lane=(), device=())


class Scripted:
    """A remedy that ends when the test says so; it records the processes it was sent against."""

    name: Final[RemedyName] = "terminate"

    def __init__(self) -> None:
        self.runs: list[RemedyCase] = []
        self.under_way: dict[str, asyncio.Future[Outcome]] = {}

    def within(self, _: RemedyCase) -> float:
        return 3600.0

    def would(self, _: RemedyCase) -> str:
        return "it would"

    async def apply(self, case: RemedyCase) -> Outcome:
        self.runs.append(case)
        self.under_way[case.incident_id] = asyncio.get_running_loop().create_future()
        try:
            return await self.under_way[case.incident_id]
        finally:
            del self.under_way[case.incident_id]


class RecordingLog(RemedyLog):
    """Remembers what is logged."""

    def __init__(self) -> None:
        self.decisions: list[tuple[str, Decision]] = []
        self.outcomes: list[tuple[RemedyCase, Outcome]] = []

    def record_decision(self, _: str, incident_id: str, decision: Decision) -> None:
        self.decisions.append((incident_id, decision))

    def record_outcome(self, _: str, case: RemedyCase, outcome: Outcome) -> None:
        self.outcomes.append((case, outcome))


class Bench:
    """One executor, what it may look at, and what it did."""

    def __init__(self, remedy: Scripted | None = None) -> None:
        self.remedy = remedy or Scripted()
        self.log = RecordingLog()
        self.alive = set(PEOPLE)
        self.clients = set(PEOPLE[:3])
        self.resolver = OneDomain(self)
        self.executor = RemedyExecutor(self.resolver, self.log)


class OneDomain(RemedyResolver):
    """Knows the bench's processes, and one domain with the lane ``default-0``."""

    def __init__(self, bench: Bench) -> None:
        super().__init__({})
        self._bench = bench

    def of(self, incident: Incident) -> DomainRemedies | None:
        if incident.lane != "default-0":
            return None
        return DomainRemedies("default", REMEDIES, {"terminate": self._bench.remedy})

    def standing(self, process: ProcessKey) -> Standing:
        if process not in self._bench.alive:
            return Standing.ENDED
        return Standing.CLIENT if process in self._bench.clients else Standing.STRANGER


def incident(
    fault: FaultClass = FaultClass.MMU,
    culprit: ProcessKey | None = PEOPLE[0],
    confidence: Confidence = Confidence.PROVEN,
    lane: str = "default-0",
) -> Incident:
    named = Suspect(culprit.pid, culprit, True) if culprit else None
    everybody = tuple(Suspect(one.pid, one, True) for one in PEOPLE)
    return Incident(
        fault, 1.0, 2.0, None, lane, named, everybody, everybody, confidence, "", (), (), ground=Ground.UVM_QUEUE
    )


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.bench = Bench()
        self.told: dict[str, list[Incident]] = {}
        self.allowed: set[tuple[str, ProcessKey]] = set()

    def turn(self) -> None:
        async def several() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        self.loop.run_until_complete(several())

    @rule(
        name=st.sampled_from("abc"),
        # What can lead to a run comes more often than by chance: rarities are found where many are under way.
        fault=st.sampled_from([*FaultClass, *[FaultClass.MMU] * 5]),
        culprit=st.sampled_from([None, *PEOPLE, *[PEOPLE[0]] * 5]),
        confidence=st.sampled_from([*Confidence, *[Confidence.PROVEN] * 4]),
        times=st.integers(1, 3),
        settle=st.booleans(),
    )
    def verdict(
        self,
        *,
        name: str,
        fault: FaultClass,
        culprit: ProcessKey | None,
        confidence: Confidence,
        times: int,
        settle: bool,
    ) -> None:
        told = incident(fault, culprit, confidence)
        self.told.setdefault(name, []).append(told)
        step = STEPS.get(fault)
        sure = confidence is Confidence.PROVEN or (
            confidence is Confidence.LIKELY and step and step.at_least == "likely"
        )
        if (
            culprit
            and step
            and step.mode == "enforce"
            and sure
            and self.bench.resolver.standing(culprit) is Standing.CLIENT
        ):
            self.allowed.add((name, culprit))

        async def tell() -> None:
            for _ in range(times):
                self.bench.executor.consider(name, told)

        self.loop.run_until_complete(tell())
        if settle:
            self.turn()

    @rule(who=st.sampled_from(PEOPLE))
    def dies(self, who: ProcessKey) -> None:
        self.bench.alive.discard(who)

    @precondition(lambda self: self.bench.remedy.under_way)
    @rule(data=st.data(), how=st.sampled_from(["done", "failed", "not needed", "raises"]))
    def ends(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.bench.remedy.under_way)))
        answer = self.bench.remedy.under_way[name]
        if how == "raises":
            answer.set_exception(OSError("the remedy's own fault"))
        else:
            outcomes: dict[str, Outcome] = {"done": Applied("x"), "failed": Failed("y"), "not needed": NotNeeded("z")}
            answer.set_result(outcomes[how])
        self.turn()

    @invariant()
    def at_most_one_run_of_a_remedy_for_an_incident(self) -> None:
        runs = Counter(case.incident_id for case in self.bench.remedy.runs)
        outcomes = Counter(case.incident_id for case, _ in self.bench.log.outcomes)
        assert not runs or max(runs.values()) == 1
        assert not outcomes or max(outcomes.values()) == 1

    @invariant()
    def only_against_the_named_culprit_and_only_in_enforce(self) -> None:
        for case in self.bench.remedy.runs:
            assert case.culprit is not None
            assert (case.incident_id, case.culprit) in self.allowed
            assert case.step.mode == "enforce"
            assert case.incident.culprit is not None
            assert case.incident.culprit.process == case.culprit

    @invariant()
    def one_at_a_time_against_a_process(self) -> None:
        busy = Counter(
            case.culprit for case in self.bench.remedy.runs if case.incident_id in self.bench.remedy.under_way
        )
        assert not busy or max(busy.values()) == 1

    @invariant()
    def what_is_off_leaves_no_trace(self) -> None:
        assert all(decision.step.mode != "off" for _, decision in self.bench.log.decisions)

    @invariant()
    def what_is_observed_is_in_the_log_alone(self) -> None:
        observed = {case.incident_id for case, outcome in self.bench.log.outcomes if isinstance(outcome, Observed)}
        assert observed.isdisjoint(case.incident_id for case in self.bench.remedy.runs)

    @invariant()
    def the_log_never_says_the_same_twice(self) -> None:
        for name in self.told:
            said = [decision for who, decision in self.bench.log.decisions if who == name]
            assert all(one != two for one, two in itertools.pairwise(said))

    def teardown(self) -> None:
        """However it stands, closing ends it, and every run that began has an outcome."""
        self.loop.run_until_complete(asyncio.wait_for(self.bench.executor.close(), 10))
        decided = {who for who, decision in self.bench.log.decisions if decision.verdict is not Verdict.DECLINE}
        assert {case.incident_id for case, _ in self.bench.log.outcomes} == decided
        assert self.bench.remedy.under_way == {}
        assert asyncio.all_tasks(self.loop) == set()
        self.loop.close()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(70), stateful_step_count=30, deadline=None)


def outcome_of(bench: Bench, told: Incident) -> Outcome:
    async def one() -> Outcome:
        bench.executor.consider("a", told)
        while not bench.log.outcomes:
            await asyncio.sleep(0)
        return bench.log.outcomes[0][1]

    return asyncio.run(asyncio.wait_for(one(), 10))


def test_a_remedy_that_hangs_is_broken_off_at_its_deadline() -> None:
    class Impatient(Scripted):
        def within(self, _: RemedyCase) -> float:
            return 0.01

    assert isinstance(outcome_of(Bench(Impatient()), incident()), Failed)


def test_two_incidents_with_one_culprit_end_it_once() -> None:
    bench = Bench()

    async def scenario() -> None:
        bench.executor.consider("a", incident())
        bench.executor.consider("b", incident(FaultClass.SM))
        await asyncio.sleep(0)
        await bench.executor.close()

    asyncio.run(scenario())
    assert [case.incident_id for case in bench.remedy.runs] == ["a"]
    assert {case.incident_id: type(outcome) for case, outcome in bench.log.outcomes} == {"a": Failed, "b": NotNeeded}


def test_a_lane_without_a_domain_has_no_policy() -> None:
    bench = Bench()
    bench.executor.consider("a", incident(lane="elsewhere"))
    assert bench.log.decisions == []


def test_a_culprit_that_becomes_known_is_treated_then() -> None:
    bench = Bench()

    async def scenario() -> None:
        bench.executor.consider("a", incident(culprit=None, confidence=Confidence.UNKNOWN))
        bench.executor.consider("a", incident())
        await asyncio.sleep(0)
        await bench.executor.close()

    asyncio.run(scenario())
    assert [decision.verdict for _, decision in bench.log.decisions] == [Verdict.DECLINE, Verdict.RUN]
    assert [case.culprit for case in bench.remedy.runs] == [PEOPLE[0]]


@pytest.mark.parametrize("many", [1500])
def test_what_is_remembered_is_bounded(many: int) -> None:
    bench = Bench()
    for number in range(many):
        bench.executor.consider(str(number), incident(FaultClass.ENGINE))
    assert len(bench.executor._past) <= 1000


def test_two_incidents_without_a_culprit_have_their_remedies_and_outcomes() -> None:
    """No remedy of today runs without a culprit, which policy decides; the executor is to be ready for one."""

    async def main() -> None:
        bench = Bench()
        told = incident(culprit=None)
        domain = bench.resolver.of(told)
        assert domain is not None
        for name in "ab":
            bench.executor._follow(domain, RemedyCase(name, told, None, STEPS[FaultClass.MMU]), Verdict.RUN)
        await asyncio.sleep(0)
        for name in "ab":
            bench.remedy.under_way[name].set_result(Applied(name))
        await bench.executor.close()
        assert [(case.incident_id, outcome) for case, outcome in bench.log.outcomes] == [
            ("a", Applied("a")),
            ("b", Applied("b")),
        ]

    asyncio.run(main())
