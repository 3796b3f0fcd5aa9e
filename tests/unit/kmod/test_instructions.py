"""How executed instructions become service calls, and what two modules are compared by."""

from __future__ import annotations

from tests.vm.instructions import SM, Code, Service, compared, own, own_functions, tally

SERVE = SM[0]
BACK = "replayable_faults_isr_bottom_half"


def service(*calls: list[str]) -> Service:
    return tally([name for call in calls for name in (SERVE, *call, BACK)], SM)


def test_nothing_outside_of_a_service_call_is_counted() -> None:
    found = tally(["uvm_open", BACK, SERVE, "serve_block", BACK, "uvm_release"], SM)
    assert found.calls == [{SERVE: 1, "serve_block": 1}]


def test_the_interrupt_is_no_part_of_a_call() -> None:
    assert service(["uvm_isr_top_half_entry", "uvm_isr_top_half"]).calls == [{SERVE: 1}]


def test_a_call_that_does_not_end_is_none() -> None:
    assert tally([SERVE, "serve_block"], SM).calls == []


def test_a_function_costs_what_it_costs_in_most_calls() -> None:
    found = service(["serve_block"] * 3, ["serve_block"] * 2, ["serve_block"] * 2)
    assert found.usual() == {SERVE: 1, "serve_block": 2}


def test_what_costs_something_else_each_time_is_left_out() -> None:
    assert service(["wait"], ["wait"] * 2, ["wait"] * 3).usual() == {SERVE: 1}


def test_what_most_calls_do_not_do_is_left_out() -> None:
    assert service([], ["flush"], []).usual() == {SERVE: 1}


def test_one_instruction_more_shows() -> None:
    stock, patched = service(*[["serve_block"]] * 3), service(*[["serve_block"] * 2] * 3)
    assert compared(patched, stock) == (3, 2, {"serve_block": (2, 1)})


def test_what_waits_in_one_of_them_is_left_out_of_both() -> None:
    stock = service(["serve_block"], ["serve_block"], ["serve_block"])
    patched = service(["serve_block"], ["serve_block"] * 2, ["serve_block"] * 3)
    assert compared(patched, stock) == (1, 1, {})


def test_functions_of_our_own_are_counted_static_and_split_ones_too() -> None:
    names = [
        "uvm_fault_isolation_contain",
        "stop_client",
        "tell.cold",
        "place_small",
        "serve_block",
        "serve_block.cold",
    ]
    assert own(service(names)) == 4


def test_our_own_functions_are_those_of_our_files() -> None:
    found = own_functions()
    assert {"uvm_fault_isolation_goes_first", "poison", "uvm_fault_report_contained", "make_sparse"} <= found
    assert not {"if", "for", "while", "switch", "module_param", "uvm_push_begin_acquire"} & found


def test_a_function_is_found_by_its_address_in_either_section() -> None:
    code = Code([0x100, 0x140, 0x900], ["serve", "wait", "serve.cold"], [range(0x100, 0x180), range(0x900, 0x910)])
    assert [code.at(address) for address in (0x100, 0x13F, 0x140, 0x905)] == ["serve", "serve", "wait", "serve.cold"]
    assert code.filter == "0x100..0x17f,0x900..0x90f"
