"""What follows from an incident, for every mode, confidence and standing there is."""

from __future__ import annotations

import itertools
from typing import get_args

import msgspec
import pytest

from mpsguard.guard import config
from mpsguard.guard.config import ConfigError, Remedies, RemedyName, Step
from mpsguard.guard.incident import Confidence, FaultClass, Ground, Incident, Suspect
from mpsguard.guard.remedies.policy import ENDING, Standing, Verdict, decide, steps_for
from mpsguard.guard.triage.grounds import GROUNDS
from mpsguard.linux.identity import ProcessKey

CULPRIT = Suspect(4242, ProcessKey(4242, 7), True)


def incident(
    confidence: Confidence,
    culprit: Suspect | None = CULPRIT,
    fault: FaultClass = FaultClass.MMU,
    ground: Ground | None = Ground.UVM_QUEUE,
) -> Incident:
    return Incident(fault, 1.0, 2.0, None, "default-0", culprit, (), (), confidence, "", (), (), ground=ground)


def verdict(
    step: Step, confidence: Confidence, standing: Standing | None, culprit: Suspect | None = CULPRIT
) -> Verdict:
    (decision,) = decide(incident(confidence, culprit), Remedies(mmu=(step,)), standing)
    assert decision.step is step
    assert decision.why
    return decision.verdict


def test_no_client_is_ended_by_default() -> None:
    for fault in FaultClass:
        for decision in decide(incident(Confidence.PROVEN, fault=fault), Remedies(), Standing.CLIENT):
            assert decision.verdict is Verdict.OBSERVE or decision.step.remedy not in ENDING


def test_every_class_of_faults_can_be_configured() -> None:
    assert {fault.value for fault in FaultClass} == set(Remedies.__struct_fields__)
    for fault in FaultClass:
        assert steps_for(Remedies(**{fault.value: (Step("terminate", "off"),)}), fault) == (Step("terminate", "off"),)


@pytest.mark.parametrize(
    ("mode", "at_least", "confidence", "standing"),
    list(itertools.product(("observe", "enforce"), ("proven", "likely"), Confidence, (*Standing, None))),
)
def test_only_a_living_client_that_is_known_well_enough(
    mode: str, at_least: str, confidence: Confidence, standing: Standing | None
) -> None:
    step = msgspec.convert({"remedy": "terminate", "mode": mode, "at_least": at_least}, Step)
    sure = confidence is Confidence.PROVEN or (confidence is Confidence.LIKELY and at_least == "likely")
    expected = {"observe": Verdict.OBSERVE, "enforce": Verdict.RUN}[mode]
    if not sure or standing is not Standing.CLIENT:
        expected = Verdict.DECLINE
    assert verdict(step, confidence, standing) is expected


@pytest.mark.parametrize("culprit", [None, Suspect(4242, None, False)])
def test_without_a_process_no_client_is_ended(culprit: Suspect | None) -> None:
    for confidence in Confidence:
        assert verdict(Step("terminate", "enforce"), confidence, None, culprit) is Verdict.DECLINE


@pytest.mark.parametrize("ground", [*Ground, None])
def test_a_process_is_ended_on_grounds_alone_that_no_other_user_can_forge(ground: Ground | None) -> None:
    step = Step("terminate", "enforce", at_least="likely")
    for confidence in (Confidence.PROVEN, Confidence.LIKELY):
        (decision,) = decide(incident(confidence, ground=ground), Remedies(mmu=(step,)), Standing.CLIENT)
        assert (decision.verdict is Verdict.RUN) == (ground is not None and GROUNDS[ground].may_act)


def test_a_decision_says_on_which_verdict_it_was_made() -> None:
    later = msgspec.structs.replace(incident(Confidence.PROVEN), revision=3)
    (decision,) = decide(later, Remedies(mmu=(Step("terminate", "enforce"),)), Standing.CLIENT)
    assert decision.revision == 3


def test_what_is_off_has_not_even_a_decision() -> None:
    for confidence, standing in itertools.product(Confidence, Standing):
        assert decide(incident(confidence), Remedies(mmu=(Step("terminate", "off"),)), standing) == ()


def test_a_class_has_its_own_remedies_alone() -> None:
    remedies = Remedies(mmu=(Step("terminate", "enforce"),), sm=(), engine=())
    assert decide(incident(Confidence.PROVEN, fault=FaultClass.SM), remedies, Standing.CLIENT) == ()


def test_ending_remedies_are_remedies() -> None:
    assert set(get_args(RemedyName)) >= ENDING


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('mmu = [{remedy = "pray"}]', "domain[0].remedies.mmu[0].remedy: 'pray' is none of terminate"),
        ('sm = [{remedy = "terminate", mode = "maybe"}]', "none of off, observe, enforce"),
        ('sm = [{remedy = "terminate", at_least = "unknown"}]', "none of proven, likely"),
        ("gpu = []", "allowed here: mmu, sm, mmu_or_sm, engine, process, lane, device"),
        ('mmu = [{remedy = "terminate"}, {remedy = "terminate"}]', "stands there twice"),
        ('mmu = [{remedy = "terminate", grace = 0}]', "grace"),
        ('mmu = [{mode = "off"}]', "remedy"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_allowed(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(f"[[domain]]\n[domain.remedies]\n{text}\n".encode(), "mpsguard.toml")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
