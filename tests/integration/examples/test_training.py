"""The training loop with a real vault, killed in the middle of its steps, where PyTorch is installed."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.whole_lines import whole_lines
from tests.integration.examples.waiting import until
from tests.integration.vault.running import REPOSITORY, VaultProcess
from tests.late import require

pytestmark = pytest.mark.slow(seconds=20, reason="loads PyTorch")

STEPS = 400


@pytest.fixture
def vault() -> Iterator[VaultProcess]:
    with VaultProcess() as running:
        yield running


def start(vault: VaultProcess, session: str, role: str, events: Path) -> subprocess.Popen[bytes]:
    words = ["--device", "cpu", "--session", session, "--steps", str(STEPS), "--events", str(events)]
    environment = {**os.environ, "MPSGUARD_VAULT": vault.socket, "MPSGUARD_ROLE": role, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "examples.training", *words], cwd=REPOSITORY, env=environment)


def losses(events: Path) -> dict[int, float]:
    """By step; one that was written twice was the same both times."""
    found: dict[int, float] = {}
    for line in whole_lines(events):
        event = json.loads(line)
        if event["event"] == "step" or (event["event"] == "promoted" and event["step"]):
            assert found.setdefault(event["step"], event["loss"]) == event["loss"]
    return found


def prepared(events: Path) -> int:
    return events.read_text().count('"prepared"') if events.exists() else 0


def test_losses_are_those_of_a_run_without_a_death(vault: VaultProcess, tmp_path: Path) -> None:
    require("torch", "numpy")
    alone = tmp_path / "alone"
    assert start(vault, "alone", "active", alone).wait(240) == 0
    expected = losses(alone)
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert expected[STEPS] < expected[1] / 2

    events, started = tmp_path / "events", []
    chance = random.Random(0)
    try:
        started.append(start(vault, "s", "active", events))
        for death in range(3):
            active = started[-1]
            until("steps", lambda: losses(events))
            # It must not be through before the standby is ready.
            active.send_signal(signal.SIGSTOP)
            started.append(start(vault, "s", "standby", events))
            until("a standby", lambda death=death: prepared(events) == death + 2)  # type: ignore[misc]
            enough = max(losses(events)) + 1 + chance.randrange(40)
            active.send_signal(signal.SIGCONT)
            until("more steps", lambda enough=enough: max(losses(events)) >= enough)  # type: ignore[misc]
            active.kill()
            active.wait()
        assert started[-1].wait(240) == 0
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert losses(events) == expected
