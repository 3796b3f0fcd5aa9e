"""The client an SM stopped for: one that is proved, the owner of the code, or fewer candidates; never a guess."""

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.evidence import ClientCame, Evidence, Observation, OwnDump, ServerSays, SmError, Source, Trust, Xid
from mpsguard.guard.incident import FaultClass, Ground
from mpsguard.guard.triage.sm_fault import Attribution, attribute_sm_fault
from mpsguard.guard.triage.verdict import triage
from mpsguard.linux.identity import ProcessKey

A, B, C = (ProcessKey(pid, pid * 10) for pid in (101, 102, 103))
ALL = (A, B, C)


def seen(what: Observation, process: ProcessKey | None = None, at: float = 20.06) -> Evidence:
    return Evidence(Source.GPU_CORE, at + 0.001, what, happened_at=at, process=process, trust=Trust.PROOF)


def place(
    *holders: ProcessKey,
    exact: Sequence[ProcessKey] = (),
    unread: Sequence[ProcessKey] = (),
    pc: int = 0x7F00,
    writer: ProcessKey | None = None,
) -> Evidence:
    return seen(SmError("misaligned address", pc, holders, tuple(exact), tuple(unread), writer))


def own(process: ProcessKey, *, raised: bool = False, grids: int = 0, trust: Trust = Trust.PROOF) -> Evidence:
    return msgspec.structs.replace(seen(OwnDump(raised, grids), process), trust=trust)


def test_an_exception_in_ones_own_dump_is_proof_whichever_holds_the_place() -> None:
    found = attribute_sm_fault([own(B, raised=True, grids=1), own(A, grids=1), place(A, exact=[A])], ALL)
    assert (found.culprits, found.ground) == ((B,), Ground.OWN_DUMP)


def test_a_dump_by_an_unseen_writer_is_no_proof_and_two_of_them_name_no_client() -> None:
    found = attribute_sm_fault([own(B, raised=True, trust=Trust.HINT)], ALL)
    assert (found.culprits, found.ground) == ((B,), Ground.OWN_DUMP_UNVERIFIED)
    two = [own(B, raised=True, trust=Trust.HINT), own(A, raised=True, trust=Trust.HINT)]
    assert attribute_sm_fault(two, ALL) == Attribution(candidates=(A, B))
    assert attribute_sm_fault([*two, own(C, raised=True)], ALL).culprits == (C,)


def test_the_owner_of_the_code_at_the_place_is_named_and_likely() -> None:
    found = attribute_sm_fault([place(B, exact=[B])], ALL)
    assert (found.culprits, found.ground) == ((B,), Ground.SENTINEL_PLACE)
    assert attribute_sm_fault([place(B, C, exact=[C])], ALL).culprits == (C,)


def test_the_sentinel_s_dump_goes_before_a_client_s_which_could_name_any_address() -> None:
    theirs = place(A, exact=[A], writer=C)
    found = attribute_sm_fault([theirs], ALL)
    assert (found.culprits, found.ground) == ((A,), Ground.CLIENT_PLACE)
    assert attribute_sm_fault([theirs, place(B, exact=[B])], ALL).culprits == (B,)
    assert attribute_sm_fault([place(A, exact=[A], writer=ProcessKey(9, 9))], ALL) == Attribution()


def test_no_client_is_named_where_it_may_have_been_another_one() -> None:
    assert attribute_sm_fault([place(A)], ALL) == Attribution(candidates=(A,))
    assert attribute_sm_fault([place(A, B)], ALL) == Attribution(candidates=(A, B))
    assert attribute_sm_fault([place(A, B, exact=[A, B])], ALL) == Attribution(candidates=(A, B))
    assert attribute_sm_fault([place(A, exact=[A], unread=[C])], ALL) == Attribution(candidates=(A, C))
    assert attribute_sm_fault([place()], ALL) == Attribution()
    assert attribute_sm_fault([], ALL) == Attribution()


def test_a_client_that_was_not_there_is_not_named() -> None:
    assert attribute_sm_fault([place(C, exact=[C])], (A, B)) == Attribution()
    assert attribute_sm_fault([own(C, raised=True)], (A, B)) == Attribution()


def test_places_of_two_clients_name_neither() -> None:
    found = attribute_sm_fault([place(A, exact=[A], pc=0x10), place(C, exact=[C], pc=0x20)], ALL)
    assert found == Attribution(candidates=(A, C))


def test_without_a_place_the_only_kernel_on_the_gpu_counts_once_all_dumps_are_there() -> None:
    """As `trap` leaves it."""
    dumps = [own(A), own(B, grids=1), own(C)]
    assert attribute_sm_fault(dumps, ALL).culprits == (B,)
    assert attribute_sm_fault(dumps, ALL).ground is Ground.LONE_KERNEL
    assert attribute_sm_fault(dumps[:2], ALL) == Attribution()
    assert attribute_sm_fault([own(A, grids=1), own(B, grids=1), own(C)], ALL) == Attribution()


FAULT = [
    *(Evidence(Source.PROCESSES, 1.0, ClientCame("d", "d-0"), process=who, trust=Trust.PROOF) for who in ALL),
    Evidence(Source.KERNEL_LOG, 20.011, Xid(13, None, "..."), happened_at=20.01, gpu="0000:18:00", serial="1"),
    Evidence(Source.KERNEL_LOG, 20.1, Xid(43, 99, "..."), happened_at=20.1, gpu="0000:18:00", serial="2"),
    Evidence(Source.SERVER_LOG, 20.02, ServerSays("fault_begins", 99)),
]


@given(st.permutations([*FAULT, place(B, exact=[B])]), st.data())
def test_the_verdict_is_the_same_in_any_order_and_open_until_the_dump_comes(
    evidence: list[Evidence], data: st.DataObject
) -> None:
    (incident,) = triage(evidence)
    assert incident.culprit is not None
    assert (incident.fault_class, incident.culprit.process) == (FaultClass.SM, B)
    assert {victim.process for victim in incident.victims} == {A, C}
    (before,) = triage(data.draw(st.permutations(FAULT)))
    assert before.culprit is None
    assert len(before.candidates) == 3


def test_fewer_candidates_are_better_than_all() -> None:
    (incident,) = triage([*FAULT, place(A, C)])
    assert incident.culprit is None
    assert {candidate.process for candidate in incident.candidates} == {A, C}
    assert {victim.process for victim in incident.victims} == set(ALL)


def test_a_memory_fault_without_a_uvm_queue_is_named_by_its_code_too() -> None:
    xid = Evidence(Source.KERNEL_LOG, 20.15, Xid(31, A.pid, "..."), happened_at=20.15, gpu="0000:18:00", serial="3")
    (incident,) = triage([*FAULT[:3], FAULT[-1], xid, place(B, exact=[B])])
    assert incident.culprit is not None
    assert (incident.fault_class, incident.culprit.process) == (FaultClass.MMU, B)
