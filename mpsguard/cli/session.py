"""What every `mpsguard-ctl` command needs: one question to the guard, and an exit code that means something."""

import json
import socket
import sys
from collections.abc import Callable
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import click
import msgspec
import zmq

from mpsguard.guard.config import DEFAULT_RUN_DIRECTORY
from mpsguard.guard.control_api import protocol
from mpsguard.guard.control_api.protocol import RequestError

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

_PIPE_WIDTH = 1000


class Exit(IntEnum):
    """Exit codes of `mpsguard-ctl`; `mpsguard-ctl check` for probes knows the first two alone."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DEGRADED = 3
    FAULT = 4
    UNREACHABLE = 5


class AskError(Exception):
    """A request had no result; the message says why."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


def error_document(code: int, message: str) -> str:
    """Return the JSON document for an error, on one line."""
    return json.dumps({"error": {"exit_code": int(code), "message": message}})


class CliSession:
    """One invocation: where the guard is, how long to wait (seconds), and how to print."""

    def __init__(
        self, run_directory: str, as_json: bool, deadline: float, *, run_directory_named: bool = False
    ) -> None:
        """``run_directory_named``: whether the user named it, so that it counts more than a configuration file."""
        self.run_directory = run_directory
        self.run_directory_named = run_directory_named
        self.as_json = as_json
        self.deadline = deadline

    @cached_property
    def console(self) -> "Console":
        """Where tables and sentences go; rich is loaded with its first use, of which --json makes none."""
        from rich.console import Console  # noqa: PLC0415 - a quarter of the command's start

        # In a pipe nothing is cut or folded: other programs read it.
        return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)

    def ask(self, command: str, arguments: msgspec.Struct, result: type[T], *, after: float = 0.0) -> T:
        """Send one request and return its result; exits with UNREACHABLE or FAILED if there is none.

        ``after``: seconds the command may take beyond the session's deadline.
        """
        try:
            return self.request(command, arguments, result, min(self.deadline + after, protocol.MAX_DEADLINE))
        except AskError as error:
            self.fail(error.code, str(error))

    def request(self, command: str, arguments: msgspec.Struct, result: type[T], deadline: float) -> T:
        """Send one request and return its result; raise AskError if there is none within ``deadline`` seconds."""
        path = protocol.api_socket(self.run_directory)
        _probe(path, deadline)
        context = zmq.Context()
        sock = context.socket(zmq.REQ)
        sock.setsockopt(zmq.LINGER, 0)
        try:
            sock.connect(f"ipc://{path}")
            sock.send(protocol.encode_request(command, arguments, deadline))
            # The guard answers in time even if the work is not done; a second more is for the way.
            if not sock.poll(int((deadline + 1) * 1000)):
                raise AskError(Exit.UNREACHABLE, f"the guard did not answer within {deadline + 1:g} s")
            return protocol.decode_result(sock.recv(), result)
        except RequestError as error:
            code = Exit.USAGE if error.code == "arguments" else Exit.FAILED
            # Of "vault_show": the words of the command line.
            raise AskError(code, f"{command.replace('_', ' ')}: {error}") from None
        except msgspec.MsgspecError as error:
            raise AskError(
                Exit.FAILED, f"{command.replace('_', ' ')}: the guard is of another version: {error}"
            ) from None
        finally:
            context.destroy(linger=0)

    def check_reachable(self, path: Path) -> None:
        """Exit with UNREACHABLE and the reason unless a guard listens at ``path``."""
        try:
            _probe(path, self.deadline)
        except AskError as error:
            self.fail(error.code, str(error))

    def print_json(self, value: Any) -> None:
        """One JSON document on one line, for machines."""
        print(json.dumps(msgspec.to_builtins(value)))  # noqa: T201

    def fail(self, code: int, message: str) -> NoReturn:
        """One line to standard error, or with --json one document to standard output; then exit.

        ``code``: an `Exit`, or 128+N for signal N.
        """
        if self.as_json:
            click.echo(error_document(code, message))
        else:
            click.echo(f"mpsguard-ctl: {message}", err=True)
        sys.exit(code)


def _probe(path: Path, within: float) -> None:
    """Raise AskError unless a guard listens at ``path``: ZeroMQ would wait for one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(within)
        try:
            probe.connect(str(path))
        except PermissionError:
            text = f"{path}: only root and the group set in the configuration may use it"
            raise AskError(Exit.UNREACHABLE, text) from None
        except OSError as error:
            text = f"no guard at {path}: {error.strerror or error}"
            if path.parent == Path(DEFAULT_RUN_DIRECTORY):
                text += " (--run-directory or MPSGUARD_RUN_DIRECTORY names another place)"
            raise AskError(Exit.UNREACHABLE, text) from None


F = TypeVar("F", bound=Callable[..., Any])


def with_session(command: F) -> F:
    """Give a command its Session, and let it take --json behind its name as well as before."""
    option = click.option(
        "--json", is_flag=True, expose_value=False, callback=_as_json, help="JSON instead of tables and sentences."
    )
    return cast(F, option(click.make_pass_decorator(CliSession)(command)))


def _as_json(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    context.ensure_object(CliSession).as_json |= wanted
