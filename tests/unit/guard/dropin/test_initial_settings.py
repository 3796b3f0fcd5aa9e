"""The variables that people set before they start the vendor's daemon, as settings of a drop-in's guard."""

from __future__ import annotations

import pytest

from mpsguard.guard.dropin.start_environment import LIMITS, PERCENTAGE, PRIORITY, initial_settings

UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"

FORMS: list[tuple[str, dict[str, str], dict[str, object]]] = [
    ("none", {}, {}),
    ("NVIDIA/nvidia-container-toolkit #285", {PERCENTAGE: "50"}, {"active_thread_percentage": 50.0}),
    ("NVIDIA/nvidia-docker #987", {PERCENTAGE: "33"}, {"active_thread_percentage": 33.0}),
    ("NVIDIA's compose sample, with a percent sign", {PERCENTAGE: "37%"}, {"active_thread_percentage": 37.0}),
    ("a unit's quotation, blanks within", {PERCENTAGE: " 37 "}, {"active_thread_percentage": 37.0}),
    ("a script's division", {PERCENTAGE: "33.333333"}, {"active_thread_percentage": 33.333333}),
    ("an exponent", {PERCENTAGE: "1e1"}, {"active_thread_percentage": 10.0}),
    ("a hexadecimal", {PERCENTAGE: "0x10"}, {"active_thread_percentage": 16.0}),
    ("a list: the first counts", {PERCENTAGE: "50,30"}, {"active_thread_percentage": 50.0}),
    ("a sign", {PERCENTAGE: "+5"}, {"active_thread_percentage": 5.0}),
    ("NVIDIA/nvidia-docker #1576", {LIMITS: "0=1G,1=512MB"}, {"pinned_device_memory_limit": {"0": "1G", "1": "512M"}}),
    ("NVIDIA/k8s-device-plugin #594", {LIMITS: "0=1000MB"}, {"pinned_device_memory_limit": {"0": "1000M"}}),
    ("AssistOS-AI/ploinky, its MPS program", {LIMITS: "0=3072M"}, {"pinned_device_memory_limit": {"0": "3G"}}),
    ("kubernetes-sigs/dra-driver-nvidia-gpu #11", {LIMITS: f"{UUID}=2G"}, {"pinned_device_memory_limit": {UUID: "2G"}}),
    ("GB as a script for Megatron has it", {LIMITS: "0=5GB"}, {"pinned_device_memory_limit": {"0": "5G"}}),
    ("a trailing comma", {LIMITS: "0=3G,"}, {"pinned_device_memory_limit": {"0": "3G"}}),
    ("blanks", {LIMITS: " 0 = 3G , 1=2g"}, {"pinned_device_memory_limit": {"0": "3G", "1": "2G"}}),
    ("an empty variable of a compose file", {LIMITS: ""}, {}),
    ("MPS manual", {PRIORITY: "1"}, {"client_priority": 1}),
    ("a zero before it", {PRIORITY: " 01"}, {"client_priority": 1}),
    ("a word counts as 0", {PRIORITY: "low"}, {"client_priority": 0}),
    ("an empty variable counts as 0", {PRIORITY: ""}, {"client_priority": 0}),
]
IGNORED = [
    {PERCENTAGE: ""},
    {PERCENTAGE: "0"},
    {PERCENTAGE: "101"},
    {PERCENTAGE: "half"},
    {PERCENTAGE: "nan"},
    {PRIORITY: "2"},
    {PRIORITY: "-1"},
    # A comment in a public program has it.
    {LIMITS: "1G"},
    {LIMITS: "0="},
    {LIMITS: "all=3G"},
    {LIMITS: "0=max"},
]


@pytest.mark.parametrize(("environment", "settings"), [form[1:] for form in FORMS], ids=[form[0] for form in FORMS])
def test_what_the_vendors_daemon_takes_is_a_setting(environment: dict[str, str], settings: dict[str, object]) -> None:
    assert initial_settings(environment) == (settings, ())


@pytest.mark.parametrize("environment", IGNORED, ids=lambda each: "=".join(*each.items()))
def test_what_it_ignores_is_named_once(environment: dict[str, str]) -> None:
    found = initial_settings(environment)
    assert found.settings == {}
    assert len(found.notes) == 1
    assert next(iter(environment)) in found.notes[0]


def test_one_bad_entry_costs_that_entry() -> None:
    found = initial_settings({LIMITS: "0=3G,x=y,1=2G", PRIORITY: "7", PERCENTAGE: "20"})
    assert found.settings == {"active_thread_percentage": 20.0, "pinned_device_memory_limit": {"0": "3G", "1": "2G"}}
    assert len(found.notes) == 2
