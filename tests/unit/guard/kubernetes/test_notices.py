"""What pods and node are told of an incident."""

import pytest

from mpsguard.guard.incident import Confidence, FaultClass
from mpsguard.guard.journal.records import RecordedIncident
from mpsguard.guard.kubernetes.notices import MAX_NOTE, NamedPods, Notice, cast_of, notices
from mpsguard.guard.pods import PodTable
from tests.unit.guard.kubernetes.records import BEGAN, CULPRIT, NODE, OFFSET, VICTIM, cast, client, pod, record


def by_subject(of: RecordedIncident, names: NamedPods = NamedPods.ALL) -> dict[str, Notice]:
    return {notice.subject.name: notice for notice in notices(of, cast(of), NODE, names)}


def test_culprit_victim_and_node_are_told_with_pod_class_and_confidence() -> None:
    found = by_subject(record())
    assert list(found) == ["pod-1", "pod-2", NODE]
    assert (found[NODE].subject.kind, found[NODE].subject.namespace, found[NODE].subject.uid) == ("Node", "", NODE)
    for name in ("pod-2", NODE):
        assert "pod team-a/pod-1 (container worker)" in found[name].note
        related = found[name].related
        assert related is not None
        assert related.uid == CULPRIT.uid
    assert found["pod-1"].related is None
    assert "1 other client in pods team-b/pod-2" in found["pod-1"].note
    for notice in found.values():
        assert "class mmu, proven, Xid 31" in notice.note
        assert "20260101-000000-1" in notice.note
        assert notice.at == BEGAN + OFFSET


def test_no_command_line_is_told() -> None:
    assert not [each for each in by_subject(record()).values() if "secret" in each.note]


def test_a_pod_may_be_kept_from_learning_of_pods_in_other_namespaces() -> None:
    found = by_subject(record(), NamedPods.NAMESPACE)
    assert "pod-1" not in found["pod-2"].note
    assert "Culprit: a pod of another namespace." in found["pod-2"].note
    assert "pod-2" not in found["pod-1"].note
    # The node's Events are read by those that operate it.
    assert "team-a/pod-1" in found[NODE].note


def test_of_an_unknown_culprit_the_candidates_are_counted() -> None:
    of = record(client(1, CULPRIT), client(2, VICTIM), culprit=None, victims=(1, 2), confidence=Confidence.UNKNOWN)
    found = by_subject(of)
    assert set(found) == {"pod-1", "pod-2", NODE}
    assert "Culprit: not known, one of 2 processes." in found["pod-1"].note
    assert "unknown" in found["pod-1"].note


def test_a_culprit_outside_of_pods_is_named_by_its_pid() -> None:
    found = by_subject(record(client(1, None), client(2, VICTIM)))
    assert set(found) == {"pod-2", NODE}
    assert "Culprit: process 1, in no pod that is known." in found["pod-2"].note


def test_several_clients_of_a_pod_are_one_notice_and_the_culprits_own_are_none() -> None:
    clients = (client(1, CULPRIT), client(2, VICTIM), client(3, VICTIM), client(4, CULPRIT))
    found = by_subject(record(*clients, victims=(1, 2, 3, 4)))
    assert set(found) == {"pod-1", "pod-2", NODE}
    assert "3 other clients in pods team-b/pod-2" in found["pod-1"].note


def test_an_end_that_harmed_no_other_client_is_not_told() -> None:
    assert by_subject(record(victims=(), fault_class=FaultClass.PROCESS)) == {}
    assert set(by_subject(record(fault_class=FaultClass.PROCESS))) == {"pod-1", "pod-2", NODE}


def test_a_contained_fault_is_told_to_its_pod_alone() -> None:
    found = by_subject(record(victims=()))
    assert set(found) == {"pod-1"}
    assert "it hit no other client" in found["pod-1"].note


def test_a_fault_of_the_gpu_is_the_nodes_alone() -> None:
    found = by_subject(record(culprit=None, victims=(), fault_class=FaultClass.DEVICE))
    assert set(found) == {NODE}
    assert "Culprit: not known, one of" not in found[NODE].note


def test_a_note_is_never_longer_than_the_api_server_takes() -> None:
    pods = [pod(number, "n" * 63) for number in range(1, 60)]
    clients = [client(number, each) for number, each in enumerate(pods, 1)]
    of = record(*clients, victims=tuple(range(2, 60)))
    found = notices(of, cast_of(of, PodTable(pods)), NODE, NamedPods.ALL)
    assert len(found) == 60
    assert max(len(each.note) for each in found) <= MAX_NOTE
    assert "and 50 more" in found[0].note


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (record(name="20260101-000001-1", began=BEGAN + 1), True),
        (record(confidence=Confidence.LIKELY), False),
        (record(fault_class=FaultClass.SM), False),
        (record(client(1, VICTIM), client(2, VICTIM), client(3, CULPRIT), victims=(2, 3)), False),
    ],
)
def test_notices_repeat_each_other_if_object_culprit_class_and_confidence_are_the_same(
    other: RecordedIncident, same: bool
) -> None:
    assert (by_subject(other)[NODE].key == by_subject(record())[NODE].key) is same
    keys = [each.key for each in by_subject(record()).values()]
    assert len(set(keys)) == len(keys)
