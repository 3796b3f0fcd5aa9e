"""How executed instructions become service calls: what waits is counted at its least, what interrupts not at all."""

from __future__ import annotations

from tests.vm.instructions import SM, tally

SERVE = SM[0]
BACK = "replayable_faults_isr_bottom_half"


def test_nothing_outside_of_a_service_call_is_counted() -> None:
    service = tally(["uvm_open", BACK, SERVE, "serve_block", BACK, "uvm_release"], SM)
    assert (service.calls, service.least) == (1, {SERVE: 1, "serve_block": 1})


def test_the_least_of_all_calls_counts() -> None:
    calls = [SERVE, "wait", "wait", "wait", BACK, SERVE, "wait", BACK, SERVE, "wait", "wait", BACK]
    service = tally(calls, SM)
    assert (service.calls, service.total, service.least["wait"]) == (3, 2, 1)


def test_what_not_every_call_does_does_not_count() -> None:
    service = tally([SERVE, BACK, SERVE, "flush", BACK], SM)
    assert service.least == {SERVE: 1}


def test_the_interrupt_is_no_part_of_a_call() -> None:
    service = tally([SERVE, "uvm_isr_top_half_entry", "uvm_isr_top_half", BACK], SM)
    assert service.least == {SERVE: 1}


def test_a_call_that_does_not_end_is_none() -> None:
    assert tally([SERVE, "serve_block"], SM).calls == 0


def test_a_longer_call_shows() -> None:
    stock = tally([SERVE, "serve_block", BACK] * 2, SM)
    patched = tally([SERVE, "serve_block", "serve_block", BACK] * 2, SM)
    assert patched.total == stock.total + 1
