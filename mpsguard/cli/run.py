"""`mpsguard run -- CMD`: a program under the guard. Its GPU work ends before a signal reaches it."""

import asyncio
import errno
import os
import secrets
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from mpsguard.cli import listening
from mpsguard.cli.ended_work import end_work_by
from mpsguard.cli.listening import Address
from mpsguard.cli.options import config_option, given_options
from mpsguard.guard import config
from mpsguard.guard.broker.classification import CLASS_VARIABLE
from mpsguard.guard.broker.client_table import PROGRAM_VARIABLE
from mpsguard.guard.config import ConfigError
from mpsguard.guard.config.classes import TAKEN
from mpsguard.linux.files import file_lock
from mpsguard.linux.sockets.listens import listens
from mpsguard.vault.supervisor.child_process import ChildProcess
from mpsguard.vault.supervisor.failover_pair import GRACE, SETTLE, FailoverPair, Plan
from mpsguard.vault.supervisor.supervisor import Start, Supervisor
from mpsguard.vault.wire.address import SOCKET_VARIABLE, socket_path
from mpsguard.vault.wire.errors import BadRequestError
from mpsguard.vault.wire.region import check_name
from mpsguard.vault.wire.supervisor_wire import IMAGE_VARIABLE, ProcessRole

OURS: Final = 125
"""Exit code of `mpsguard run` for its own mistakes and its user's; as timeout(1), env(1) and docker-run(1) have it."""

_CANNOT_RUN: Final = 126
_NOT_FOUND: Final = 127
_VARIABLE: Final = "CUDA_MPS_PIPE_DIRECTORY"

_CONTROL: Final = "control"
_LOCK: Final = "control_lock"

_OF_STANDBYS: Final = {"addresses": "--listen", "give_up": "--give-up", "settle": "--settle"}
"""Parameters and their options that mean something with --standby alone."""


class _UsageError(click.UsageError):
    """Wrong usage, with an exit code that programs do not use."""

    exit_code = OURS


class _Command(click.Command):
    """A command with wrong usage as a _UsageError."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        """As click's own."""
        try:
            return super().make_context(*arguments, **more)
        except click.MissingParameter as error:
            raise _UsageError("no command to run: mpsguard run [OPTIONS] -- CMD [ARGS]...", error.ctx) from None
        except click.UsageError as error:
            raise _UsageError(error.message, error.ctx) from None


@click.command(
    cls=_Command,
    context_settings={"allow_interspersed_args": False},
    epilog="Exit codes: the program's; 128+N if signal N ended it; 127 not found, 126 cannot be run, "
    "125 usage, configuration, or a failure of mpsguard run itself.",
)
@config_option
@click.option("--domain", help="Which one, if the configuration has several.")
@click.option("--pipe-directory", type=click.Path(), help="The domain's public directory, instead of --domain.")
@click.option("--class", "service_class", metavar="NAME", help="The service class to choose, of the domain's.")
@click.option(
    "--run-directory",
    envvar="MPSGUARD_RUN_DIRECTORY",
    help="Where the guard's sockets are; default MPSGUARD_RUN_DIRECTORY, or the configuration's.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0, 86400),
    help="Seconds from the first signal to SIGKILL; without it no SIGKILL follows.",
)
@click.option(
    "--deadline", type=click.FloatRange(0.1, 300), default=3.0, show_default=True, help="Seconds the guard may take."
)
@click.option("--foreground", is_flag=True, help="Leave the terminal, and its Ctrl-C, to the program.")
@click.option(
    "--standby",
    type=click.IntRange(0, 1),
    default=0,
    show_default=True,
    help="Processes that wait to go on where the active one leaves off.",
)
@click.option(
    "--listen",
    "addresses",
    multiple=True,
    metavar="HOST:PORT",
    callback=listening.addresses,
    help="With --standby: a listening socket for CMD, by LISTEN_FDS; may be given several times.",
)
@click.option(
    "--give-up",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="With --standby: deaths of the active process in a row, after which it is over.",
)
@click.option(
    "--settle",
    type=click.FloatRange(0, 3600),
    default=SETTLE,
    show_default=True,
    help="With --standby: seconds after which a process that is ready, or promoted, ends such a row.",
)
@click.option(
    "--image",
    metavar="NAME",
    help="Fill the program's sessions from this image (mpsguard-ctl image list), if they do not exist yet.",
)
@click.argument("arguments", metavar="-- CMD [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    *,
    path: Path | None,
    domain: str | None,
    pipe_directory: str | None,
    service_class: str | None,
    run_directory: str | None,
    grace: float | None,
    deadline: float,
    foreground: bool,
    standby: int,
    addresses: tuple[Address, ...],
    give_up: int,
    settle: float,
    image: str | None,
    arguments: tuple[str, ...],
) -> None:
    """Run CMD under the guard: on INT, TERM, HUP and QUIT its GPU work ends first, so that no other program's does."""
    try:
        public, asked_at = _where(path, domain, pipe_directory, run_directory)
    except ConfigError as error:
        _fail(OURS, str(error))
    if not _is_served(public):
        _say(f"{public}: no guard serves it; the program runs without one, and without MPS{_other_directory(public)}")
    if service_class is not None and not _has_class(public, service_class):
        _fail(OURS, f"--class: {public} has no class {service_class!r}")
    if not standby and (given := given_options(_OF_STANDBYS)):
        raise _UsageError(f"{given[0]}: only with --standby 1")

    if image is not None:
        _check_image(image)
        os.environ[IMAGE_VARIABLE] = image

    end_work = end_work_by(asked_at, deadline)
    with ExitStack() as owned:
        start: Start
        if standby:
            plan = _plan(
                owned,
                public,
                asked_at,
                addresses,
                service_class=service_class,
                arguments=arguments,
                own_group=not foreground,
                give_up=give_up,
                grace=grace,
                settle=settle,
            )

            def start(ended: Callable[[], None]) -> FailoverPair:
                pair = FailoverPair(plan, end_work, _say, ended)
                owned.callback(pair.close)
                pair.start()
                return pair
        else:
            environment = {**os.environ, _VARIABLE: _directory(public, service_class)}

            def start(_: Callable[[], None]) -> ChildProcess:
                return ChildProcess.start(arguments, environment, own_group=not foreground)

        code = _supervise(Supervisor(start, end_work, grace=grace, foreground=foreground), arguments)
    sys.exit(code)


def _check_image(name: str) -> None:
    try:
        check_name("image", name)
    except BadRequestError as error:
        _fail(OURS, f"--image: {error}")


def _supervise(supervisor: Supervisor, arguments: tuple[str, ...]) -> int:
    try:
        return asyncio.run(supervisor.run(_say))
    except OSError as error:
        missing = error.errno == errno.ENOENT
        _fail(_NOT_FOUND if missing else _CANNOT_RUN, f"{arguments[0]}: {error.strerror}")
    except Exception as error:  # a fault of ours must not look like an exit code of the program
        traceback.print_exc()
        _fail(OURS, f"{type(error).__name__}: {error}")


def _plan(
    owned: ExitStack,
    public: str,
    run_directory: str,
    addresses: Sequence[Address],
    *,
    service_class: str | None,
    arguments: tuple[str, ...],
    own_group: bool,
    give_up: int,
    grace: float | None,
    settle: float,
) -> Plan:
    """How two processes are started; the listening sockets go to ``owned``.

    A service class is chosen by its directory, and by a standby, which has a directory of its own, by a variable.
    """
    chosen = _directory(public, service_class)
    waiting = str(config.standby_directory(public))
    if _is_socket(Path(public) / _CONTROL) and not _is_socket(Path(waiting) / _CONTROL):
        # CUDA would not complain: it would run without MPS.
        _fail(OURS, f"{public}: the domain has no standby lane (standby = true in its configuration)")
    try:
        listeners = listening.take(owned, addresses)
    except OSError as error:
        _fail(OURS, f"--listen: {error.strerror or error}")
    vault = os.environ.get(SOCKET_VARIABLE) or str(socket_path(run_directory))
    common = {**os.environ, SOCKET_VARIABLE: vault, PROGRAM_VARIABLE: secrets.token_hex(16)}
    if service_class is not None:
        common[CLASS_VARIABLE] = service_class
    environment = {
        ProcessRole.ACTIVE: {**common, _VARIABLE: chosen},
        ProcessRole.STANDBY: {**common, _VARIABLE: waiting},
    }
    return Plan(
        arguments,
        environment,
        listeners,
        own_group,
        give_up,
        grace=GRACE if grace is None else grace,
        settle=settle,
    )


def _has_class(public: str, name: str) -> bool:
    return name not in TAKEN and Path(name).name == name and _is_socket(Path(_directory(public, name)) / _CONTROL)


def _directory(public: str, service_class: str | None) -> str:
    return public if service_class is None else str(config.class_directory(public, service_class))


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


def _other_directory(public: str) -> str:
    """Return a hint if the caller's own pipe directory is served, and this command was told of another one."""
    named = os.environ.get(_VARIABLE)
    if named is None or named == public or not _is_served(named):
        return ""
    return f" ({named}, which {_VARIABLE} names, is served: --pipe-directory {named})"


def _is_served(directory: str) -> bool:
    """Whether a guard, or systemd for it, listens in a public directory: a guard that was killed leaves its socket."""
    control = Path(directory) / _CONTROL
    if not _is_socket(control):
        return False
    if file_lock.holder(Path(directory) / _LOCK) is not None:
        return True
    # systemd's socket, or a guard of another pid namespace.
    return listens(control)


def _is_socket(path: Path) -> bool:
    try:
        return path.is_socket()
    except OSError:
        return False


def _say(text: str) -> None:
    click.echo(f"mpsguard run: {text}", err=True)


def _fail(code: int, message: str) -> NoReturn:
    _say(message)
    sys.exit(code)
