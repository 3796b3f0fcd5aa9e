"""Which class takes a client, and what a client can reach by its own words."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mpsguard.guard.broker.classification import Identity, assign, keeps_limits, may_choose, needs_entries, takes
from mpsguard.guard.config import ServiceClass

ALICE, BOB, ROOT = 1001, 1002, 0
POD = "01234567-89ab-cdef-0123-456789abcdef"
CRITICAL = ServiceClass("critical", uids=(ALICE,))
BATCH = ServiceClass("batch", sm_share=40, priority="below_normal", choosers="anyone")
CLASSES = (CRITICAL, BATCH, ServiceClass("rest", default=True, sm_share=70))


def name_of(classes: tuple[ServiceClass, ...], client: Identity, chosen: str | None = None) -> str | None:
    found = assign(classes, client, chosen).service_class
    return None if found is None else found.name


def test_the_first_class_that_takes_a_client_has_it_and_else_the_default_one() -> None:
    assert name_of(CLASSES, Identity(ALICE, ALICE)) == "critical"
    assert name_of(CLASSES, Identity(BOB, BOB)) == "rest"
    assert name_of(CLASSES[:2], Identity(BOB, BOB)) is None


@pytest.mark.parametrize(
    ("service_class", "client", "taken"),
    [
        (ServiceClass("x"), Identity(ALICE, 7), False),
        (ServiceClass("x", gids=(7,)), Identity(ALICE, 7), True),
        (ServiceClass("x", uids=(ALICE,), gids=(8,)), Identity(ALICE, 7), False),
        (ServiceClass("x", cgroups=("/machine.slice/*",)), Identity(ALICE, 7, "/machine.slice/a.scope"), True),
        (ServiceClass("x", cgroups=("/machine.slice/*",)), Identity(ALICE, 7, "/user.slice"), False),
        (ServiceClass("x", containers=("0123abcd",)), Identity(ALICE, 7, f"/docker/0123abcd{'0' * 56}"), True),
        (ServiceClass("x", containers=("0123abcd",)), Identity(ALICE, 7, ""), False),
        (
            ServiceClass("x", pods=(POD,)),
            Identity(ALICE, 7, f"/kubepods.slice/pod{POD.replace('-', '_')}.slice/c"),
            True,
        ),
        (ServiceClass("x", pods=(POD,)), Identity(ALICE, 7, f"/kubepods/burstable/pod{POD}/c"), True),
        (ServiceClass("x", slurm_jobs=(42,)), Identity(ALICE, 7, "/slurm/uid_1001/job_42/step_0"), True),
        (ServiceClass("x", slurm_jobs=(4,)), Identity(ALICE, 7, "/system.slice/slurmstepd.scope/job_42/step_0"), False),
    ],
)
def test_what_a_class_takes(service_class: ServiceClass, client: Identity, taken: bool) -> None:
    assert takes(service_class, client) is taken


def test_a_class_is_chosen_by_those_that_may_and_others_get_what_is_meant_for_them() -> None:
    assert name_of(CLASSES, Identity(BOB, BOB), "batch") == "batch"
    assert name_of(CLASSES, Identity(ROOT, ROOT), "critical") == "critical"
    denied = assign(CLASSES, Identity(BOB, BOB), "critical")
    assert denied.service_class is CLASSES[2]
    assert str(BOB) in denied.denied
    assert may_choose(ServiceClass("x", choosers=(BOB,)), Identity(BOB, BOB))


@pytest.mark.parametrize(
    ("priority", "lifted"), [("0", True), ("1", False), (None, False), ("", False), ("nonsense", False)]
)
def test_a_client_that_lifts_itself_is_seen(priority: str | None, lifted: bool) -> None:
    found = assign((BATCH,), Identity(BOB, BOB, priority=priority), "batch")
    assert (found.lifted, found.service_class, found.refused) == (lifted, BATCH, "")


def test_a_client_that_lifts_itself_is_put_into_another_class_or_refused() -> None:
    less = ServiceClass("less", sm_share=10, priority="below_normal")
    moved = ServiceClass("moved", default=True, priority="below_normal", lifted="less")
    assert name_of((less, moved), Identity(BOB, BOB, priority="0")) == "less"
    assert name_of((less, moved), Identity(BOB, BOB, priority="1")) == "moved"
    strict = ServiceClass("strict", default=True, priority="below_normal", lifted="refuse")
    assert "strict" in assign((strict,), Identity(BOB, BOB, priority="0"), None).refused


def test_entries_are_read_only_where_a_class_asks_for_them() -> None:
    assert not needs_entries((CRITICAL, ServiceClass("x", sm_share=3, default=True)))
    assert needs_entries((ServiceClass("x", slurm_jobs=(1,)),))
    assert needs_entries((BATCH,))


@example(1, "", "0\x1f", "batch")
@example(1, "", "9" * 5000, "batch")
@example(1, "", "\u0660", "batch")
@given(
    st.integers(1, 10),
    st.text(max_size=60),
    st.none() | st.text(max_size=8),
    st.sampled_from(["critical", "batch", None]),
)
def test_no_word_of_a_client_gets_it_a_class_that_it_may_not_have(
    uid: int, cgroup: str, priority: str | None, chosen: str | None
) -> None:
    client = Identity(uid, uid, cgroup, priority)
    found = assign(CLASSES, client, chosen).service_class
    assert found is not None
    assert found.default or may_choose(found, client)


@pytest.mark.parametrize(
    ("asked", "keeps"),
    [
        (None, True),
        ("0=2G", True),
        ("0=10G", True),
        ("0=9000M", True),
        ("0=20G", False),
        ("0=2G,1=4G", False),
        ("1=4G", False),
        ("x=y", False),
        ("", False),
        ("0=2G ", False),
        ("0=" + "9" * 5000 + "G", False),
    ],
)
def test_a_limit_of_ones_own_is_trusted_only_where_the_driver_keeps_to_it(asked: str | None, keeps: bool) -> None:
    assert keeps_limits(ServiceClass(name="batch", memory_limit={"0": "10G"}), asked) is keeps
    assert keeps_limits(ServiceClass(name="batch"), asked)


def test_of_limits_of_two_gpus_one_entry_says_too_little() -> None:
    both = ServiceClass(name="batch", memory_limit={"0": "10G", "1": "10G"})
    assert not keeps_limits(both, "0=2G")
    assert keeps_limits(both, None)
