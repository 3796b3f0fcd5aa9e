"""What a client was promised, which GPU a limit means, and what is an excess."""

import pytest

from mpsguard.guard.config import parse
from mpsguard.guard.incidents.memory_limits import TOLERANCE, Promise, exceeds, gpu_named, promised
from mpsguard.guard.model import Client, LaneSettings
from mpsguard.guard.sensors.nvml_device import GpuIdentity
from mpsguard.linux.identity import ProcessKey

G = 1 << 30
SETTINGS = parse(
    b"""
[[domain]]
multiuser = true
[[domain.class]]
name = "batch"
memory_limit = { 0 = "8G" }
""",
    "a test",
).domain[0]
A, B = GpuIdentity("0000:18:00", "GPU-aaaa1111", "H100"), GpuIdentity("0000:2a:00", "GPU-aaaa2222", "H100")
OTHER = GpuIdentity("0000:3b:00", "GPU-bbbb3333", "A100")


def client(service_class: str | None = None, *shown: str) -> Client:
    return Client(
        ProcessKey(1, 1), 0, 0, "", "", None, None, "default", "default-0", 0.0,
        service_class=service_class, memory_limits=shown,
    )  # fmt: skip


def test_the_server_s_word_counts_before_the_class_s_and_that_before_the_domain_s() -> None:
    defaults = LaneSettings(pinned_device_memory_limit={"0": "4G", "1": "6G"})
    domain = {"0": Promise(4 * G, False, False), "1": Promise(6 * G, False, False)}
    assert promised(client(), SETTINGS, LaneSettings()) == {}
    assert promised(client(), SETTINGS, defaults) == domain
    assert promised(client("gone"), SETTINGS, defaults) == domain
    assert promised(client("batch"), SETTINGS, defaults) == domain | {"0": Promise(8 * G, True, False)}
    assert promised(client("batch", "0=8G"), SETTINGS, defaults)["0"] == Promise(8 * G, True, True)
    # It came before a class was changed: what its server showed holds.
    assert promised(client("batch", "0=9G"), SETTINGS, LaneSettings()) == {"0": Promise(9 * G, True, True)}


@pytest.mark.parametrize(
    ("name", "of_domain", "gpus", "meant"),
    [
        ("0", ("all",), (A, B), A),
        ("1", ("all",), (A, B), B),
        ("2", ("all",), (A, B), None),
        # CUDA counts the fastest first, NVML by address.
        ("0", ("all",), (A, B, OTHER), None),
        ("0", ("1",), (A, B), B),
        ("1", ("1",), (A, B), None),
        ("0", ("GPU-aaaa2222", "0"), (A, B, OTHER), B),
        ("1", ("GPU-aaaa2222", "0"), (A, B), A),
        ("GPU-aaaa1", ("all",), (A, B, OTHER), A),
        ("GPU-AAAA1111", ("all",), (A, B, OTHER), A),
        ("GPU-aaaa", ("all",), (A, B), None),
        ("MIG-1", ("all",), (A, B), None),
        ("0", ("MIG-1",), (A, B), None),
        ("0", ("all",), (), None),
        ("GPU-", ("all",), (GpuIdentity("0000:18:00", "", ""),), None),
    ],
)
def test_which_gpu_a_limit_means(
    name: str, of_domain: tuple[str, ...], gpus: tuple[GpuIdentity, ...], meant: GpuIdentity | None
) -> None:
    assert gpu_named(name, of_domain, gpus) is meant


def test_the_tolerance_is_no_excess() -> None:
    assert not exceeds(8 * G + TOLERANCE, 8 * G)
    assert exceeds(8 * G + TOLERANCE + 1, 8 * G)
