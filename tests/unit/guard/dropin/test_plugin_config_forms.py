"""Configurations as users of the device plugin write them, read as its own decoder reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpsguard.guard.dropin.plugin_config import PluginConfig, PluginConfigError, SharedResource, load

TEN = PluginConfig(resources=(SharedResource("nvidia.com/gpu", 10),))
NOTHING = PluginConfig()
MPS = "sharing:\n  mps:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 10\n"

ACCEPTED: list[tuple[str, str, PluginConfig]] = [
    ("NVIDIA/k8s-device-plugin, cmd/config-manager: the empty fallback", "", NOTHING),
    ("a newline", "\n", NOTHING),
    ("NVIDIA/k8s-device-plugin #1132: all in comments", "# version: v1\n#sharing:\n#  mps:\n", NOTHING),
    ("an empty document", "---\n", NOTHING),
    ("null", "null\n", NOTHING),
    ("an empty mapping", "{}\n", NOTHING),
    ("blanks alone", "   \n\n", NOTHING),
    ("an empty version", f"version:\n{MPS}", TEN),
    ("no version", MPS, TEN),
    ("NVIDIA/k8s-device-plugin #712", f"version: v1\n{MPS}", TEN),
    ("NVIDIA/gpu-operator #717, k8s-device-plugin #1150", "version: v1\nflags:\n  migStrategy: none\n", NOTHING),
    ("keys without values", "version: v1\nflags:\nresources:\nsharing:\n", NOTHING),
    ("mps without a value", "sharing:\n  mps:\n", NOTHING),
    ("mps switched off by null", "sharing: {mps: null, timeSlicing: {resources: []}}", NOTHING),
    ("encoding/json: the case of keys", MPS.replace("sharing", "Sharing").replace("mps", "MPS"), TEN),
    ("a number with a point", MPS.replace("10", "10.0"), TEN),
    ("an exponent", MPS.replace("10", "1.0e+1"), TEN),
    ("a second document", f"{MPS}---\nsharing: {{mps: {{resources: [1]}}}}\n", TEN),
    ("an end of the document", f"---\n{MPS}...\n", TEN),
    ("a byte-order mark and CR LF", "\ufeff" + MPS.replace("\n", "\r\n"), TEN),
    ("an anchor", "resources: &r [{name: nvidia.com/gpu, replicas: 10}]\nsharing: {mps: {resources: *r}}\n", TEN),
    ("a key twice: the last one", f"sharing: {{}}\n{MPS}", TEN),
    ("the time slicing that the plugin checks", f"{MPS}  timeSlicing: {{resources: 3}}\n", TEN),
    (
        "NVIDIA/k8s-device-plugin #467",
        MPS.replace("  mps:", "  mps:\n    renameByDefault: true").replace(
            "sharing", "flags: {migStrategy: none}\nsharing"
        ),
        PluginConfig(rename_by_default=True, resources=TEN.resources),
    ),
    ("YAML 1.1's yes", MPS.replace("  mps:", "  mps:\n    renameByDefault: yes"), PluginConfig(True, TEN.resources)),
]
PASSED_OVER: list[tuple[str, str, tuple[str, ...]]] = [
    # NVIDIA/k8s-device-plugin #816: the indentation was lost.
    ("sharing:\nmps:\nresources:\n- name: nvidia.com/gpu\n", "", ("mps",)),
    (f"{MPS}      rename: small\n      memoryGB: 2\n", "sharing.mps.resources[0].", ("rename", "memoryGB")),
    (f"{MPS}      devices: [0]\n", "sharing.mps.resources[0].", ("devices",)),
    (f"{MPS}      devices: all\n", "", ()),
    ("imex: {}\nresources: {gpus: []}\nflag: 1\nsharing: {mig: 2}", "", ("flag", "sharing.mig")),
    ("on: 1\n7: 2\n", "", ("True", "7")),
]
REFUSED: list[tuple[str, str]] = [
    ("3", "file"),
    ("- version: v1", "file"),
    ("version: v2", "version"),
    ("version: 1", "version"),
    ("sharing: mps", "sharing"),
    ("sharing: {mps: true}", "sharing.mps"),
    ("sharing: {mps: {renameByDefault: 'true'}}", "renameByDefault"),
    ("sharing: {mps: {resources: {name: gpu}}}", "resources"),
    ("sharing: {mps: {resources: [gpu]}}", "resources[0]"),
    ("sharing: {mps: {resources: [{replicas: 2}]}}", "name"),
    ("sharing: {mps: {resources: [{name: gpu}]}}", "replicas"),
    # NVIDIA/k8s-device-plugin #1548
    (MPS.replace("10", "1"), "replicas"),
    (MPS.replace("10", "2.5"), "replicas"),
    (MPS.replace("10", "'10'"), "replicas"),
    (MPS.replace("10", "true"), "replicas"),
    (MPS.replace("10", "-4"), "replicas"),
    ("\tversion: v1", "\\t"),
    ("a: 2020-13-45", "month"),
    ("{" * 100_000, ""),
    ("x: \udcff", "config.yaml"),
]


def read(tmp_path: Path, text: str) -> PluginConfig:
    path = tmp_path / "config.yaml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    return load(path)


@pytest.mark.parametrize(("text", "config"), [each[1:] for each in ACCEPTED], ids=[each[0] for each in ACCEPTED])
def test_what_the_plugin_takes(tmp_path: Path, text: str, config: PluginConfig) -> None:
    assert read(tmp_path, text) == config


def test_the_fallback_of_the_config_manager_is_a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").symlink_to("/dev/null")
    assert load(tmp_path / "config.yaml") == NOTHING


@pytest.mark.parametrize(("text", "at", "keys"), PASSED_OVER)
def test_keys_without_effect_are_named(tmp_path: Path, text: str, at: str, keys: tuple[str, ...]) -> None:
    assert read(tmp_path, text).passed_over == tuple(f"{at}{key}" for key in keys)


@pytest.mark.parametrize(("text", "says"), REFUSED, ids=[each[0][:40] for each in REFUSED])
def test_what_would_mean_something_else_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(PluginConfigError) as raised:
        read(tmp_path, text)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
