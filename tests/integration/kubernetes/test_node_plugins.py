"""Plugins of node-problem-detector and gpud: their form, and what these programs make of the guard's answers.

Neither program is here: their rules, as read in their sources, are simulated.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import yaml

from mpsguard.guard.control_api.health import MAX_TEXT
from tests.harness.guard_process import REPOSITORY
from tests.integration.guarded import Guarded
from tests.integration.kubernetes.helm import KUBERNETES

NPD = KUBERNETES / "node-problem-detector" / "mpsguard.json"
GPUD = KUBERNETES / "gpud" / "mpsguard.yaml"


class Seen(IntEnum):
    """What node-problem-detector makes of an exit status."""

    OK = 0
    NON_OK = 1
    UNKNOWN = 2


# Node-problem-detector ignores keys that it does not know: one that is misspelt would have no effect.


class NpdGlobal(msgspec.Struct, forbid_unknown_fields=True):
    invoke_interval: str
    timeout: str
    max_output_length: int
    concurrency: int


class NpdCondition(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    reason: str
    message: str


class NpdRule(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["permanent", "temporary"]
    condition: str
    reason: str
    path: str
    args: list[str]
    timeout: str


class NpdConfig(msgspec.Struct, forbid_unknown_fields=True):
    plugin: Literal["custom"]
    pluginConfig: NpdGlobal  # noqa: N815 - the other program's name
    source: str
    metricsReporting: bool  # noqa: N815 - as above
    conditions: list[NpdCondition]
    rules: list[NpdRule]


class GpudExpectation(msgspec.Struct, forbid_unknown_fields=True):
    regex: str


class GpudPath(msgspec.Struct, forbid_unknown_fields=True):
    query: str
    field: str
    expect: GpudExpectation | None = None


class GpudParser(msgspec.Struct, forbid_unknown_fields=True):
    json_paths: list[GpudPath]


class GpudScript(msgspec.Struct, forbid_unknown_fields=True):
    content_type: Literal["plaintext", "base64"]
    script: str


class GpudStep(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    run_bash_script: GpudScript


class GpudPlugin(msgspec.Struct, forbid_unknown_fields=True):
    steps: list[GpudStep]
    parser: GpudParser


class GpudSpec(msgspec.Struct, forbid_unknown_fields=True):
    plugin_name: str
    plugin_type: Literal["init", "component", "component_list"]
    run_mode: Literal["auto", "manual"]
    timeout: str
    interval: str
    health_state_plugin: GpudPlugin


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.start()
        yield running


@pytest.fixture
def environment(guarded: Guarded, tmp_path: Path) -> dict[str, str]:
    """With mpsguard-ctl on PATH, as a package installs it."""
    program = tmp_path / "mpsguard-ctl"
    program.write_text(
        f"#!/bin/sh\ncd {shlex.quote(str(REPOSITORY))} && "
        f'exec {shlex.quote(sys.executable)} -m mpsguard.cli.ctl --deadline 1 "$@"\n'
    )
    program.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "MPSGUARD_RUN_DIRECTORY": str(guarded.run_directory),
    }


def npd() -> NpdConfig:
    return msgspec.json.decode(NPD.read_bytes(), type=NpdConfig)


def test_node_problem_detector_accepts_the_plugin() -> None:
    config = npd()
    (condition,), (rule,) = config.conditions, config.rules
    assert (condition.type, condition.reason) == ("MpsLaneFault", "MpsLaneIsHealthy")
    assert (rule.type, rule.condition, rule.reason) == ("permanent", "MpsLaneFault", "MpsLaneFault")
    assert Path(rule.path).is_absolute()
    assert (config.pluginConfig.invoke_interval, config.pluginConfig.timeout, rule.timeout) == ("30s", "5s", "5s")
    assert config.pluginConfig.max_output_length == MAX_TEXT


def seen(environment: dict[str, str]) -> tuple[Seen, str]:
    """Return what node-problem-detector makes of one run of the plugin."""
    config = npd()
    (rule,) = config.rules
    timeout = float(rule.timeout.removesuffix("s"))
    done = subprocess.run(
        [Path(rule.path).name, *rule.args],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    output = done.stdout.strip()[: config.pluginConfig.max_output_length]
    assert output == done.stdout.strip(), "cut"
    return Seen(min(done.returncode, Seen.UNKNOWN)), output


def test_the_condition_follows_the_guard(environment: dict[str, str], tmp_path: Path) -> None:
    found, output = seen(environment)
    assert found is Seen.OK, output
    found, output = seen({**environment, "MPSGUARD_RUN_DIRECTORY": str(tmp_path)})
    assert found is Seen.NON_OK
    assert str(tmp_path)[:20] in output


def gpud_health(environment: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """Return what gpud makes of one run of the plugin: its health, and the fields that it shows."""
    (spec,) = msgspec.convert(yaml.safe_load(GPUD.read_text()), list[GpudSpec])
    (step,) = spec.health_state_plugin.steps
    done = subprocess.run(
        ["bash", "-c", step.run_bash_script.script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=float(spec.timeout.removesuffix("s")),
        check=False,
    )
    document = json.loads(done.stdout)
    healthy = done.returncode == 0
    fields = {}
    for path in spec.health_state_plugin.parser.json_paths:
        value = document[path.query.removeprefix("$.")]
        fields[path.field] = value
        text = json.dumps(value) if isinstance(value, bool) else str(value)
        healthy = healthy and (path.expect is None or re.search(path.expect.regex, text) is not None)
    return "Healthy" if healthy else "Unhealthy", fields


def test_gpud_shows_what_the_guard_says(environment: dict[str, str], tmp_path: Path) -> None:
    health, fields = gpud_health(environment)
    assert (health, fields["ok"]) == ("Healthy", True), fields
    health, fields = gpud_health({**environment, "MPSGUARD_RUN_DIRECTORY": str(tmp_path)})
    assert (health, fields["ok"]) == ("Unhealthy", False)
    assert "no guard" in fields["text"]
