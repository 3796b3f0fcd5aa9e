"""`nvidia-cuda-mps-control`: the vendor's command line, served by a guard.

Commands go to the daemon of the pipe directory, a guard or the vendor's own. `-d` and `-f` start a guard where no
process serves the directory yet. The options are those of the vendor's manuals for drivers 535 to 615
(docs/guides/drop-ins.md).
"""

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Final, NoReturn

import mpsguard
from mpsguard.guard.dropin import pipe_directory as pipes
from mpsguard.guard.dropin.pipe_directory import PipeDirectoryError, ServedBy
from mpsguard.guard.lanes.command import CommandFailedError, CommandTimeoutError

_DEADLINE: Final = 120.0
"""Seconds for an answer; a guard gives up earlier (`user_command_deadline`). `quit` waits for the clients to end."""

_NAME: Final = "nvidia-cuda-mps-control"
_NONE: Final = "Cannot find MPS control daemon process"
_RUNNING: Final = "An instance of this daemon is already running"
"""The vendor's own words, which scripts may look for."""
_PROTOCOL: Final = "CUDA_MPS_PROTOCOL_VERSION"
_OWN_PROTOCOL: Final = "2"


class FrontExit(IntEnum):
    """How the program ends; the vendor's has 0 and 1."""

    DONE = 0
    FAILED = 1
    """No daemon, or it does not carry the command out; with ``-d``, the guard does not serve."""
    USAGE = 2
    REFUSED = 3
    """The vendor's program may take it; mpsguard does not."""
    BUSY = 75
    """No answer in time, or no place: try again (EX_TEMPFAIL of sysexits.h)."""
    INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(FrontExit.USAGE, f"{_NAME}: {message} (-h: help)\n")


def main() -> None:
    """Run the program with the arguments and the environment of this process."""
    try:
        sys.exit(_run(sys.argv[1:], os.environ))
    except KeyboardInterrupt:
        sys.exit(FrontExit.INTERRUPTED)
    except BrokenPipeError:
        # Else the interpreter would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(FrontExit.FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=_NAME,
        allow_abbrev=False,
        description="mpsguard in the place of the MPS control daemon. Without an option: send COMMAND, or each line of "
        "standard input, to the daemon of CUDA_MPS_PIPE_DIRECTORY.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("-d", "--daemon", dest="background", action="store_true", help="start a guard in the background")
    what.add_argument("-f", "--foreground", action="store_true", help="start a guard in the foreground")
    what.add_argument("-q", "--quit", "-quit", dest="quit", action="store_true", help="end daemon and servers")
    many = ("-M", "-m", "--multiuser", "--multiuser-server", "-multiuser-server")
    parser.add_argument(*many, dest="multiuser", action="store_true", help="one server for all users (with -d or -f)")
    parser.add_argument("-p", "--protocol", metavar="2", help="the protocol, of which mpsguard has no other")
    parser.add_argument("-S", "--static-partitioning", dest="partitions", action="store_true", help="refused")
    parser.add_argument("-a", "--apply", metavar="FILE", help="refused")
    parser.add_argument("-v", "--version", action="version", version=f"mpsguard {mpsguard.__version__}")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a command of the control daemon, such as quit")
    return parser


def _run(arguments: Sequence[str], environment: Mapping[str, str]) -> FrontExit | int:
    """Return the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    starts = given.background or given.foreground
    if given.command and (starts or given.quit):
        parser.error("a command and -d, -f or -q: one of them")
    if given.multiuser and not starts:
        parser.error("-M: only with -d or -f")
    refused = _refused(given, environment.get(_PROTOCOL) if starts else None)
    if refused is not None:
        return _fail(f"{_NAME}: {refused}", FrontExit.REFUSED)
    try:
        directory = pipes.pipe_directory(environment)
        if starts:
            return _start(directory, environment, foreground=given.foreground, multiuser=given.multiuser)
        return _send(directory, ["quit"] if given.quit else [" ".join(given.command)] if given.command else _typed())
    except PipeDirectoryError as error:
        return _fail(str(error))
    except BrokenPipeError:
        raise
    except CommandTimeoutError as error:
        return _fail(str(error), FrontExit.BUSY)
    except CommandFailedError as error:
        return _fail(str(error) if pipes.is_served(directory) else _NONE)
    except OSError as error:
        return _fail(f"{error.filename or environment.get(pipes.PIPES)}: {error.strerror}")


def _refused(given: argparse.Namespace, variable: str | None) -> str | None:
    """Return why what is asked for cannot be had, or None; ``variable``: of the protocol, where a guard is started.

    The variable beats the option. A command follows the daemon, which speaks protocol 2 (manual of 615).
    """
    protocol = variable or given.protocol or _OWN_PROTOCOL
    if given.partitions:
        return "-S: mpsguard has no static partitions of the SMs; clients get shares by active thread percentages"
    if given.apply is not None:
        return "-a: a file of protocol 3; mpsguard speaks protocol 2 alone"
    if protocol != _OWN_PROTOCOL:
        return f"-p, {_PROTOCOL}: {protocol!r}; mpsguard speaks protocol {_OWN_PROTOCOL} alone"
    return None


def _typed() -> Iterable[str]:
    """Return the lines of standard input as they come; none where it is closed.

    Bytes: a command is passed on as it is. The last one may lack its newline, and a NUL ends a line, as the vendor's
    program has it.
    """
    lines = [] if sys.stdin is None else sys.stdin.buffer
    return (line.removesuffix(b"\n").partition(b"\0")[0].decode(errors="surrogateescape") for line in lines)


def _send(directory: Path, lines: Iterable[str]) -> int:
    """Send commands until one fails, print the replies, and return the last exit status; CommandFailedError.

    A command that the daemon rejects has not failed: its exit status is 0, as with the vendor's program.
    """
    if not pipes.is_served(directory):
        return _fail(_NONE)
    for command in lines:
        quits = command.encode(errors="surrogateescape").split()[:1] == [b"quit"]
        reply = pipes.ask(directory, command, None if quits else _DEADLINE)
        if sys.stdout is not None:
            for said in reply.lines:
                sys.stdout.buffer.write(said.encode(errors="surrogateescape") + b"\n")
            sys.stdout.buffer.flush()
        if reply.exit_status:
            return reply.exit_status
    return FrontExit.DONE


def _start(directory: Path, environment: Mapping[str, str], *, foreground: bool, multiuser: bool) -> FrontExit:
    """Start a guard unless one serves the directory already; return the exit status. Raises as what it calls."""
    # Only here: a health check that sends a command shall not load them.
    try:
        from mpsguard.guard.config import ConfigError  # noqa: PLC0415
        from mpsguard.guard.dropin import keeper_start, own_guard  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mpsguard"):
            raise
        from mpsguard.linux.extras import how_to_install  # noqa: PLC0415 - as above

        return _fail(f"a guard needs {error.name}: {how_to_install('daemon')}")

    served = pipes.settled(directory)
    if served is ServedBy.GUARD:
        unheard = [name for name in own_guard.ASKED if name in environment]
        _say(f"mpsguard serves {directory} already{', without ' if unheard else ''}{', '.join(unheard)}")
        return FrontExit.DONE
    if served is ServedBy.ENDING:
        return _fail(f"{directory} is served by {served.value}: it waits for its clients", FrontExit.BUSY)
    if served is ServedBy.STOCK:
        return _fail(f"{_RUNNING}: {directory} is served by the vendor's")
    try:
        guard = own_guard.prepare(directory, environment, multiuser=multiuser)
        for note in guard.notes:
            _say(f"{_NAME}: {note}")
        if foreground:
            with suppress(FileNotFoundError):  # the machine's own guard has yet to make its log directory
                own_guard.link_logs(guard.config)
            keeper_start.become(guard.config)
        keeper_start.in_background(guard.config, guard.logs / "mpsguard.log", environment)
        own_guard.link_logs(guard.config)
    except (ConfigError, keeper_start.KeeperStartError) as error:
        return _fail(str(error))
    return FrontExit.DONE


def _say(message: str) -> None:
    print(message, file=sys.stderr)  # noqa: T201 - a command line's word


def _fail(message: str, status: FrontExit = FrontExit.FAILED) -> FrontExit:
    _say(message)
    return status


if __name__ == "__main__":
    main()
