"""`mpsguard run -- CMD`: a program under the guard, whose GPU work ends before a signal reaches it."""

import asyncio
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from mpsguard import config
from mpsguard.cli import end_work, question
from mpsguard.cli.supervise import Supervisor
from mpsguard.cli.wrapped import Wrapped
from mpsguard.config import ConfigError
from mpsguard.linux import process_tree
from mpsguard.model import ProcessKey

OURS: Final = 125
"""Exit code of `mpsguard run` for its own mistakes and its user's; as timeout(1), env(1) and docker-run(1) have it."""

_CANNOT_RUN: Final = 126
_NOT_FOUND: Final = 127
_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"

_MARGIN: Final = 0.5
"""Seconds the guard may take beyond the control daemon."""


class _UsageError(click.UsageError):
    """Wrong usage, with an exit code that programs do not use."""

    exit_code = OURS


class _Command(click.Command):
    """A command whose wrong usage is a _UsageError."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        """As click's own."""
        try:
            return super().make_context(*arguments, **more)
        except click.UsageError as error:
            raise _UsageError(error.message, error.ctx) from None


@click.command(
    cls=_Command,
    context_settings={"allow_interspersed_args": False},
    epilog="Exit codes: the program's; 128+N if signal N ended it; 127 not found, 126 cannot be run, "
    "125 usage, configuration, or a failure of mpsguard run itself.",
)
@click.option(
    "--config", "path", type=click.Path(path_type=Path), help=f"TOML file; default {config.DEFAULT_PATH} if it exists."
)
@click.option("--domain", help="Which one, if the configuration has several.")
@click.option("--pipe-directory", type=click.Path(), help="The domain's public directory, instead of --domain.")
@click.option("--run-directory", envvar="MPSGUARD_RUN_DIRECTORY", help="Where the guard's sockets are.")
@click.option(
    "--grace", type=click.FloatRange(0, 86400), help="Seconds from the first signal to SIGKILL; never without."
)
@click.option(
    "--deadline", type=click.FloatRange(0.1, 300), default=3.0, show_default=True, help="Seconds the guard may take."
)
@click.option("--foreground", is_flag=True, help="Leave the terminal, and its Ctrl-C, to the program.")
@click.argument("arguments", metavar="-- CMD [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    *,
    path: Path | None,
    domain: str | None,
    pipe_directory: str | None,
    run_directory: str | None,
    grace: float | None,
    deadline: float,
    foreground: bool,
    arguments: tuple[str, ...],
) -> None:
    """Run CMD under the guard: on INT, TERM, HUP and QUIT its GPU work ends first, so that nobody else's does."""
    try:
        public, asked_at = _where(path, domain, pipe_directory, run_directory)
    except ConfigError as error:
        _fail(OURS, str(error))
    environment = {**os.environ, _VARIABLE: public}
    supervisor = Supervisor(
        lambda: Wrapped.start(arguments, environment, own_group=not foreground),
        lambda processes: _end_work(asked_at, processes, deadline),
        grace=grace,
        foreground=foreground,
    )
    try:
        code = asyncio.run(supervisor.run(_say))
    except OSError as error:
        missing = error.errno == errno.ENOENT
        _fail(_NOT_FOUND if missing else _CANNOT_RUN, f"{arguments[0]}: {error.strerror}")
    except Exception as error:  # a fault of ours must not look like an exit code of the program
        _fail(OURS, f"{type(error).__name__}: {error}")
    sys.exit(code)


def _where(
    path: Path | None, domain: str | None, pipe_directory: str | None, run_directory: str | None
) -> tuple[str, str]:
    """The public directory and the guard's run directory; ConfigError."""
    if pipe_directory is not None:
        if domain is not None:
            raise ConfigError("--domain and --pipe-directory: only one of them")
        if not Path(pipe_directory).is_absolute():
            raise ConfigError(f"--pipe-directory: {pipe_directory!r} is not an absolute path")
        if path is None and run_directory is not None:
            return pipe_directory, run_directory
    settings = config.load(path)
    asked_at = run_directory or settings.guard.run_directory
    if pipe_directory is not None:
        return pipe_directory, asked_at
    named = {each.name: each.pipe_directory for each in settings.domain}
    if domain is None and len(named) == 1:
        return next(iter(named.values())), asked_at
    if domain not in named:
        what = "--domain: which one?" if domain is None else f"--domain: no domain {domain!r};"
        raise ConfigError(f"{what} there are: {', '.join(named)}")
    return named[domain], asked_at


async def _end_work(run_directory: str, processes: Sequence[ProcessKey], within: float) -> end_work.Outcome:
    namespace = process_tree.pid_namespace()
    assert namespace is not None
    arguments = end_work.Arguments(tuple(processes), namespace, within)
    return await question.ask(run_directory, "end_work", arguments, end_work.Outcome, within + _MARGIN)


def _say(text: str) -> None:
    click.echo(f"mpsguard run: {text}", err=True)


def _fail(code: int, message: str) -> NoReturn:
    _say(message)
    sys.exit(code)
