"""A command of mpsguard-ctl without a process of its own: to start one takes longer than all that it does."""

import json
import subprocess
from contextlib import suppress
from typing import Any, NoReturn

import click
import msgspec
from click.testing import CliRunner

from mpsguard.cli.ctl import main
from mpsguard.cli.session import CliSession, error_document


class _Kept(CliSession):
    """A session that keeps the documents instead of printing them."""

    def __init__(self, run_directory: str, deadline: float) -> None:
        super().__init__(run_directory, as_json=True, deadline=deadline, run_directory_named=True)
        self.documents: list[Any] = []

    def print_json(self, value: Any) -> None:
        """Keep what would be printed."""
        self.documents.append(json.loads(json.dumps(msgspec.to_builtins(value))))

    def fail(self, code: int, message: str) -> NoReturn:
        """Keep the error's document, and end the command."""
        self.documents.append(json.loads(error_document(code, message)))
        raise SystemExit(code)


def document_of(run_directory: str, name: str, *arguments: str, deadline: float) -> Any:
    """The one document that `mpsguard-ctl --json NAME ARGUMENTS` prints."""
    command = main.get_command(click.Context(main), name)
    assert command is not None, name
    session = _Kept(run_directory, deadline)
    # Most commands end with a status that says what the document says.
    with suppress(SystemExit):
        command.main(list(arguments), prog_name=name, obj=session, standalone_mode=False)
    (document,) = session.documents
    return document


def done_by(run_directory: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """What `mpsguard-ctl --run-directory RUN_DIRECTORY ARGUMENTS` prints, and the status that it ends with."""
    words = ["--run-directory", run_directory, *arguments]
    done = CliRunner().invoke(main, words, prog_name="mpsguard-ctl")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)
