"""A reload puts all of a changed configuration in force, or nothing of it; clients and lanes do not notice."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from fault_injection.sim.script import Script
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded
from tests.integration.sim.test_parking import end, force_fault


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.start()
        yield running


@pytest.fixture(scope="module")
def unchanged() -> Iterator[Guarded]:
    """A guard for tests that change nothing of it."""
    with Guarded() as running:
        running.start()
        yield running


def edit(guarded: Guarded, before: str, after: str) -> None:
    text = guarded.config.read_text()
    assert before in text
    guarded.config.write_text(text.replace(before, after, 1))


def reload(guarded: Guarded) -> tuple[int, Any]:
    done = guarded.ctl("--json", "reload")
    return done.returncode, json.loads(done.stdout)


def test_a_limit_is_in_force_after_a_reload(guarded: Guarded) -> None:
    client = guarded.client()
    client.expect("started")
    lane = guarded.lane()
    edit(guarded, "[domain.policy]", "[domain.policy]\nmax_parked = 1\n")
    assert reload(guarded) == (0, {"keys": ["domain[default].policy.max_parked"]})
    assert reload(guarded) == (0, {"keys": []})
    force_fault(guarded)
    late = [guarded.client() for _ in range(3)]
    wait_for("a client beyond the limit", lambda: guarded.events("parking_full"))
    Script(guarded.pipe).clear()
    assert "connected" in [end(each)[0] for each in late]
    assert client.process.poll() is None
    assert guarded.lane()["control"] == lane["control"]


def test_a_remedy_is_in_force_after_a_reload(guarded: Guarded) -> None:
    assert guarded.lane_in("ACTIVE")
    edit(
        guarded, "[domain.policy]", '[domain.remedies]\nmmu = [{ remedy = "terminate", mode = "off" }]\n[domain.policy]'
    )
    assert reload(guarded) == (0, {"keys": ["domain[default].remedies.mmu"]})


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("[domain.policy]", "[domain.policy]\nmax_parked = 0", "max_parked"),
        ("[domain.policy]", "[domain.policy]\nmax_parked = 3\nrestart_burst = 3", "restart_burst"),
        ('log_format = "json"', 'log_format = "json"\nlog_level = "debug"\ngroup = "root"', "guard.group"),
        ("[guard]", "[guard", "TOML"),
        ("control_binary", 'gpus = ["7"]\ncontrol_binary', "domain[default].gpus"),
    ],
)
def test_all_or_nothing(unchanged: Guarded, before: str, after: str, says: str) -> None:
    good = unchanged.config.read_text()
    edit(unchanged, before, after)
    code, said = reload(unchanged)
    assert code == 1
    assert says in said["error"]["message"]
    unchanged.config.write_text(good)
    # Had anything been changed, it would be changed back now.
    assert reload(unchanged) == (0, {"keys": []})


def test_sighup_reloads(guarded: Guarded) -> None:
    edit(guarded, 'log_format = "json"', 'log_format = "json"\nlog_level = "debug"')
    os.kill(guarded.guard.pid, signal.SIGHUP)
    wait_for("the event", lambda: guarded.events("reloaded"))
    assert guarded.events("reloaded")[0]["data"]["keys"] == ["guard.log_level"]
    edit(guarded, 'log_level = "debug"', 'log_level = "loud"')
    os.kill(guarded.guard.pid, signal.SIGHUP)
    wait_for("the refusal", lambda: guarded.events("reload_refused"))
    assert guarded.guard.poll() is None


def test_the_log_has_what_its_new_level_asks_for(guarded: Guarded) -> None:
    edit(guarded, 'log_format = "json"', 'log_format = "json"\nlog_level = "error"')
    assert reload(guarded)[0] == 0
    before = guarded.process.log.read_text()
    guarded.client("--iterations", "1").expect("finished")
    wait_for("its end", lambda: guarded.events("client_ended"))
    assert guarded.process.log.read_text() == before
    edit(guarded, '"error"', '"info"')
    assert reload(guarded)[0] == 0
    guarded.client("--iterations", "1").expect("finished")
    wait_for("its end in the log", lambda: '"client_ended"' in guarded.process.log.read_text())
