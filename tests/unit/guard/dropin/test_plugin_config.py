"""The device plugin's configuration: what its own daemon would make of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpsguard.guard.dropin.plugin_config import Gpu, MpsResource, PluginConfigError, load, resource

GPUS = [
    Gpu(0, "GPU-a", 81559, (9, 0), mig=False),
    Gpu(1, "GPU-b", 81559, (9, 0), mig=True),
    Gpu(2, "GPU-c", 0, (9, 0), mig=False),
]


def made_of(tmp_path: Path, text: str, gpus: list[Gpu] = GPUS) -> MpsResource | None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return resource(load(path), gpus)


def shared(replicas: object, more: str = "", name: str = "nvidia.com/gpu") -> str:
    return f"version: v1\nsharing: {{mps: {{{more} resources: [{{name: {name}, replicas: {replicas}}}]}}}}\n"


def test_limits_are_the_plugins(tmp_path: Path) -> None:
    """A partitioned GPU is left out, and one with unknown memory has no limit."""
    made = made_of(tmp_path, shared(3, "renameByDefault: true,"))
    assert made == MpsResource("nvidia.com/gpu.shared", ("GPU-a", "GPU-c"), ((0, 27186),), 33)
    assert made.commands() == [
        "set_default_device_pinned_mem_limit 0 27186M",
        "set_default_active_thread_percentage 33",
    ]


@pytest.mark.parametrize("name", ["gpu", "nvidia.com/gpu"])
def test_the_prefix_may_be_left_out(tmp_path: Path, name: str) -> None:
    made = made_of(tmp_path, shared(2, name=name))
    assert made is not None
    assert made.name == "nvidia.com/gpu"


@pytest.mark.parametrize(
    "text",
    [
        "version: v1",
        "{}",
        "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}",
        shared(4, name="nvidia.com/mig-1g.5gb"),
    ],
)
def test_what_is_not_shared_by_mps_needs_no_daemon(tmp_path: Path, text: str) -> None:
    assert made_of(tmp_path, text) is None


def test_without_a_file_or_a_gpu_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert resource(load(None), GPUS) is None
    assert made_of(tmp_path, shared(4), []) is None
    assert made_of(tmp_path, shared(4), GPUS[1:2]) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (shared(49), "48"),
        (shared(1), "replicas"),
        (shared("many"), "replicas"),
        ("sharing: [", "config.yaml"),
        ("sharing: 3", "sharing"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(PluginConfigError) as raised:
        made_of(tmp_path, text)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_old_gpus_have_fewer_places(tmp_path: Path) -> None:
    old = [Gpu(0, "GPU-a", 16384, (7, 0), mig=False)]
    assert made_of(tmp_path, shared(16), old) is not None
    with pytest.raises(PluginConfigError, match="at most 16"):
        made_of(tmp_path, shared(17), old)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PluginConfigError, match="cannot be read"):
        load(tmp_path / "none.yaml")
