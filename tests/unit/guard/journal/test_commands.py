"""`mpsguard-ctl incidents` and `incident`, over a real control API and a real journal."""

import asyncio
import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from mpsguard.cli import incidents
from mpsguard.cli.session import CliSession
from mpsguard.guard.control_api.server import Api
from mpsguard.guard.daemon.commands import incidents as incidents_command
from mpsguard.guard.journal.journal import Journal
from mpsguard.guard.journal.records import Bundle
from tests.unit.guard.report.examples import CASE, INCIDENT

Run = Callable[..., Result]


class Keeper:
    def __init__(self, journal: Journal) -> None:
        self.journal = journal


@click.group()
@click.option("--directory")
@click.pass_context
def ctl(context: click.Context, directory: str) -> None:
    context.obj = CliSession(directory, False, 10.0)


ctl.add_command(incidents.incidents)
ctl.add_command(incidents.incident)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Runs a command against an API that is served in a thread of its own."""
    with tempfile.TemporaryDirectory(prefix="mg-") as directory:
        ready, loop = threading.Event(), asyncio.new_event_loop()
        over = asyncio.Event()

        async def serve() -> None:
            journal = Journal.open(Path(directory) / "journal.db")
            journal.record_incident(INCIDENT, CASE.clients, id=CASE.id)
            handlers: dict[str, Any] = {handler.name: handler for handler in incidents_command.HANDLERS}
            api: Api[Any] = Api(Keeper(journal), handlers, directory)
            api.open(None)
            serving = asyncio.create_task(api.run())
            ready.set()
            await over.wait()
            serving.cancel()
            await asyncio.wait({serving})
            await api.close()
            journal.close()

        thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
        thread.start()
        assert ready.wait(60)
        yield lambda *arguments: CliRunner().invoke(ctl, ["--directory", directory, *arguments])
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def test_the_list_has_a_line_for_each(run: Run) -> None:
    plain = run("incidents")
    assert plain.exit_code == 0
    (line,) = [line for line in plain.output.splitlines() if CASE.id in line]
    assert all(word in line for word in ("mmu", "31", "0000:18:00", "4242 python train.py", "proven", "2"))
    (listed,) = json.loads(run("incidents", "--json", "--last", "1").output)["incidents"]
    assert listed["culprit"]["pid"] == 4242


def test_show_begins_with_the_verdict(run: Run) -> None:
    assert run("incident", "show", CASE.id).output.startswith("Process 4242 (python train.py")
    assert json.loads(run("incident", "show", CASE.id, "--json").output)["id"] == CASE.id


def test_an_export_is_a_bundle_that_reads_back(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "bundle.json"
    assert str(file) in run("incident", "export", CASE.id, "--output", str(file)).output
    bundle = msgspec.json.decode(file.read_bytes(), type=Bundle)
    assert bundle.record.incident == INCIDENT
    assert set(bundle.evidence) >= set(INCIDENT.evidence)
    assert file.stat().st_mode & 0o077 == 0
    assert json.loads(run("incident", "export", CASE.id).output)["version"] == 1


def test_a_report_is_a_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    said = run("incident", "report", CASE.id, "--output", str(file), "--json")
    assert json.loads(said.output) == {"id": CASE.id, "output": str(file)}
    assert file.read_text().startswith("<!DOCTYPE html>")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("command", ["show", "export", "report"])
def test_an_unknown_id_is_one_line_and_exit_1(run: Run, tmp_path: Path, command: str) -> None:
    output = ("--output", str(tmp_path / "x")) if command == "report" else ()
    for name in ("20000101-000000-9", "../../x\n\x1b[31m"):
        refused = run("incident", command, name, *output)
        assert refused.exit_code == 1
        assert len(refused.output.splitlines()) == 1
        assert "\x1b" not in refused.output
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_one_line_and_exit_1(run: Run) -> None:
    refused = run("incident", "report", CASE.id, "--output", "/no/such/directory/x.html")
    assert refused.exit_code == 1
    assert len(refused.output.splitlines()) == 1


@pytest.mark.parametrize("name", ["latest", CASE.id[:12], CASE.id[-6:]])
def test_a_part_of_an_id_is_enough(run: Run, name: str) -> None:
    shown = run("incident", "show", name, "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output)["id"] == CASE.id


def test_a_report_can_go_to_standard_output(run: Run) -> None:
    told = run("incident", "report", CASE.id, "--output", "-")
    assert told.exit_code == 0
    assert told.stdout.startswith("<!DOCTYPE html>")
