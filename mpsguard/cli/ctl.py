"""The command line `mpsguard-ctl`."""

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import click
from click.core import ParameterSource

import mpsguard
from mpsguard.cli.commands import Commands
from mpsguard.cli.session import CliSession, Exit, error_document
from mpsguard.guard.config import DEFAULT_RUN_DIRECTORY

COMMANDS: Final = {
    "status": "mpsguard.cli.status",
    "check": "mpsguard.cli.check",
    "repaired": "mpsguard.cli.check",
    "clients": "mpsguard.cli.clients",
    "classes": "mpsguard.cli.lanes",
    "lanes": "mpsguard.cli.lanes",
    "events": "mpsguard.cli.events",
    "incidents": "mpsguard.cli.incidents",
    "incident": "mpsguard.cli.incidents",
    "terminate": "mpsguard.cli.clients",
    "move": "mpsguard.cli.lanes",
    "resize": "mpsguard.cli.vault",
    "lifelines": "mpsguard.cli.clients",
    "mps": "mpsguard.cli.lanes",
    "metrics": "mpsguard.cli.status",
    "reload": "mpsguard.cli.status",
    "doctor": "mpsguard.cli.doctor",
    "vault": "mpsguard.cli.vault",
    "image": "mpsguard.cli.image",
    "snapshot": "mpsguard.cli.snapshot",
    "rightsize": "mpsguard.cli.rightsize",
    "top": "mpsguard.cli.top",
}
"""The commands and their modules."""


_JSON_WANTED: Final = "mpsguard.json_wanted"
"""Key in a context's ``meta``: whether --json stands anywhere on the command line."""


_OF_OUTPUT: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE})
"""What a write to a file, terminal or pipe fails with; it names no file."""


def _discard_output() -> None:
    """Put /dev/null in the place of standard output, which the interpreter would write to once more at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _JsonUsageError(click.UsageError):
    """Wrong usage, told as one JSON document on standard output."""

    def show(self, file: Any = None) -> None:  # noqa: ARG002 - the signature is click's
        """Print the document."""
        click.echo(error_document(self.exit_code, self.format_message()))


@contextmanager
def _usage_errors(*, as_json: bool) -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        if not as_json:
            raise
        raise _JsonUsageError(error.format_message(), error.ctx) from None


class _ControlCommands(Commands):
    """The commands of `mpsguard-ctl`; with --json anywhere on the line, wrong usage is told as JSON, too."""

    def main(self, *arguments: Any, **named: Any) -> Any:
        """As click's own; an error of a file that no command expects is one line, too, and so is a full disk."""
        try:
            try:
                return super().main(*arguments, **named)
            finally:
                # At the interpreter's end an error of it would be a traceback.
                sys.stdout.flush()
        except OSError as error:
            where = error.filename or ("standard output" if error.errno in _OF_OUTPUT else None)
            if where is None:
                raise
            if error.errno != errno.EPIPE:
                click.echo(f"mpsguard-ctl: {where}: {error.strerror}", err=True)
            _discard_output()
            sys.exit(Exit.FAILED)

    def make_context(self, info_name: str | None, args: Sequence[str], *more: Any, **named: Any) -> click.Context:
        """As click's own."""
        arguments = list(args)  # click empties the list that it is given
        as_json = "--json" in arguments
        with _usage_errors(as_json=as_json):
            context = super().make_context(info_name, arguments, *more, **named)
        context.meta[_JSON_WANTED] = as_json
        return context

    def invoke(self, ctx: click.Context) -> Any:
        """As click's own, which parses the command's arguments here."""
        with _usage_errors(as_json=ctx.meta[_JSON_WANTED]):
            return super().invoke(ctx)


@click.group(
    cls=_ControlCommands,
    modules=COMMANDS,
    epilog="Exit codes: 0 healthy or done, 1 failed, 2 usage, 3 degraded, 4 a lane in FAULT, 5 guard unreachable.",
)
@click.option(
    "--run-directory",
    envvar="MPSGUARD_RUN_DIRECTORY",
    default=DEFAULT_RUN_DIRECTORY,
    show_default=True,
    help="Where the guard's sockets are.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of tables.")
@click.option(
    "--deadline",
    type=click.FloatRange(0.1, 600),
    default=10.0,
    show_default=True,
    help="Seconds for an answer.",
)
@click.version_option(mpsguard.__version__, package_name="mpsguard")
@click.pass_context
def main(context: click.Context, run_directory: str, as_json: bool, deadline: float) -> None:
    """Look at a running mpsguard and tell it what to do."""
    named = context.get_parameter_source("run_directory") is not ParameterSource.DEFAULT
    context.obj = CliSession(run_directory, as_json, deadline, run_directory_named=named)


if __name__ == "__main__":
    main()
