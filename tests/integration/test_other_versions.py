"""A guard of another version answers with other fields: what asked it says so in one line."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mpsguard.guard.control_api import async_client
from mpsguard.guard.control_api.async_client import NoAnswerError
from mpsguard.guard.control_api.messages.guard import Status
from mpsguard.guard.control_api.protocol import NoArguments
from mpsguard.guard.control_api.server import Handler
from tests.harness.guard_process import REPOSITORY
from tests.integration.scripted_guard import scripted_guard


class OtherStatus(msgspec.Struct):
    release: str


async def serve(_: None, __: NoArguments) -> OtherStatus:
    return OtherStatus("99")


HANDLERS = {"status": Handler("status", NoArguments, serve)}


def test_the_command_line(tmp_path: Path) -> None:
    with scripted_guard(str(tmp_path), HANDLERS):
        command = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", str(tmp_path)]
        plain, as_json = (
            subprocess.run([*command, *more], cwd=REPOSITORY, capture_output=True, text=True, timeout=30.0, check=False)
            for more in (["status"], ["status", "--json"])
        )
    assert (plain.returncode, plain.stdout, plain.stderr.count("\n")) == (1, "", 1)
    assert (as_json.returncode, as_json.stderr) == (1, "")
    assert json.loads(as_json.stdout)["error"]["exit_code"] == 1


def test_a_program_with_an_event_loop(tmp_path: Path) -> None:
    with scripted_guard(str(tmp_path), HANDLERS), pytest.raises(NoAnswerError):
        asyncio.run(async_client.ask(str(tmp_path), "status", NoArguments(), Status, 30.0))
