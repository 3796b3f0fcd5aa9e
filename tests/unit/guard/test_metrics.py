"""Metrics of a domain: every series is there before anything happened, so that `increase()` sees its first event."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mpsguard.guard.metrics.registry import Metrics
from mpsguard.guard.model import LaneState

OTHERS = {
    "mpsguard_evidence",  # by sensor, of no domain
    "mpsguard_paths_mended",  # by path; that of a domain may be another one's too
    "mpsguard_remedies",
    "mpsguard_objective_windows",  # made by each objective
}


@pytest.fixture
def families() -> dict[str, list[dict[str, str]]]:
    metrics = Metrics()
    metrics.domain("gpu0")
    metrics.set_lane_state("gpu0", "gpu0-0", LaneState.ACTIVE)
    return {
        family.name: [sample.labels for sample in family.samples if sample.value == 0]
        for family in text_string_to_metric_families(metrics.exposition())
        if family.type in {"counter", "histogram"}
    }


def test_every_counter_of_a_domain_is_there_from_the_start(families: dict[str, list[dict[str, str]]]) -> None:
    without = {name for name, labels in families.items() if not any(each.get("domain") == "gpu0" for each in labels)}
    assert without == OTHERS


@pytest.mark.parametrize(
    ("name", "label", "values"),
    [
        ("mpsguard_parked_clients", "outcome", {"ready", "left", "deadline", "too_many"}),
        ("mpsguard_handshakes", "kind", {"probe", "client", "debuggee", "ui"}),
        ("mpsguard_incidents", "fault_class", {"mmu", "sm", "mmu_or_sm", "engine", "process", "lane", "device"}),
        ("mpsguard_incidents", "confidence", {"proven", "likely", "unknown"}),
        ("mpsguard_incidents", "domain", {"", "gpu0"}),
    ],
)
def test_with_each_value_of_its_labels(
    families: dict[str, list[dict[str, str]]], name: str, label: str, values: set[str]
) -> None:
    assert {each[label] for each in families[name]} == values
