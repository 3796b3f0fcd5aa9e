"""Metrics, alert rules and dashboard, judged by Prometheus' own tool and against what a guard really exposes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded

MONITORING = REPOSITORY / "examples" / "monitoring"
RULES = MONITORING / "mpsguard.rules.yml"
RUNBOOKS = REPOSITORY / "docs" / "runbooks"
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
GRAFANAS = {"$__rate_interval": "5m", "$__range": "6h", "$instance": ".*", "$domain": ".*"}
"""Grafana's variables, and what stands for them here."""
OF_PROMETHEUS = {"up"}

PROMTOOL = shutil.which("promtool") or shutil.which(REPOSITORY / ".cache" / "promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool; on Debian scripts/bootstrap packages gets it"
)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.start()
        running.client().expect("started")
        wait_for("the client", running.clients)
        yield running


@pytest.fixture(scope="module")
def text(guarded: Guarded) -> str:
    return str(guarded.asked("metrics")["text"])


def promtool(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run(
        [PROMTOOL, *arguments], cwd=MONITORING, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def queries() -> list[str]:
    """Every query of the dashboard, with values for its variables."""
    panels = json.loads((MONITORING / "mpsguard.dashboard.json").read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    for variable, value in GRAFANAS.items():
        found = [query.replace(variable, value) for query in found]
    return found


def rules() -> list[tuple[str, str]]:
    """Name and expression of each alert."""
    return re.findall(r"- alert: (\w+)\n +expr: (.*)\n", RULES.read_text())


def exposed(text: str) -> set[str]:
    """The names of all series, those of histograms included."""
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    parts = {name: ("_bucket", "_sum", "_count") if kind == "histogram" else ("",) for name, kind in kinds.items()}
    return {name + part for name, ends in parts.items() for part in ends}


@needs_promtool
def test_the_exposition_is_clean(text: str) -> None:
    done = promtool("check", "metrics", stdin=text)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_promtool
def test_the_rules_are_clean_and_their_tests_pass() -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES.name)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool("test", "rules", "mpsguard.rules.test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


@needs_promtool
def test_every_query_of_the_dashboard_can_be_parsed(tmp_path: Path) -> None:
    records = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries())]
    assert len(records) > 15
    assert not any(re.search(r"\$[a-z_]", record["expr"]) for record in records)
    file = tmp_path / "queries.json"
    # JSON is YAML.
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": records}]}))
    done = promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_dashboard_name_what_is_there(text: str) -> None:
    there = exposed(text) | OF_PROMETHEUS
    for query in [*queries(), *(expression for _, expression in rules())]:
        named = set(re.findall(r"\b(?:mpsguard_\w+|up)\b(?!\")", query))
        assert named
        assert named <= there, query


def test_no_series_tells_when_another_was_created(text: str) -> None:
    assert "_created" not in text


def test_a_client_has_a_series_without_its_command_line(guarded: Guarded, text: str) -> None:
    (client,) = guarded.clients()
    (series,) = re.findall(r"^mpsguard_client_info\{(.*)\} 1\.0$", text, re.MULTILINE)
    assert f'pid="{client["process"]["pid"]}"' in series
    assert client["command"] not in text


def test_victims_are_counted_once(guarded: Guarded) -> None:
    innocents = [guarded.client() for _ in range(2)]
    for each in innocents:
        each.expect("started")
    before = guarded.metric("mpsguard_incident_victims_total", domain="default")
    # The fixture's client is hit, too.
    guarded.client("--fault", "kill", "--after", "0.1").wait()
    wait_for("the count", lambda: guarded.metric("mpsguard_incident_victims_total", domain="default") > before)
    assert guarded.metric("mpsguard_incident_victims_total", domain="default") - before == 3
    # Its first verdicts said otherwise.
    assert guarded.metric("mpsguard_incidents_total", fault_class="process", confidence="likely", domain="default") == 1
    assert guarded.metric("mpsguard_incidents_total", fault_class="mmu_or_sm") == 0


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    names = [name for name, _ in rules()]
    assert sorted(names) == sorted(path.stem for path in RUNBOOKS.glob("*.md"))
    text = RULES.read_text()
    for name in names:
        page = (RUNBOOKS / f"{name}.md").read_text()
        assert f"runbook_url: docs/runbooks/{name}.md" in text
        assert page.startswith(f"# {name}\n")
        assert re.findall(r"^## (.*)$", page, re.MULTILINE) == HEADINGS
