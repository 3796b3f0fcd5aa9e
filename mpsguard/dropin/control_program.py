"""`nvidia-cuda-mps-control`: the vendor's command line, served by a guard.

Commands go to the daemon of the pipe directory, a guard or the vendor's own. `-d` and `-f` start a guard where no
process serves the directory yet.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

import mpsguard
from mpsguard.dropin import pipe_directory as pipes
from mpsguard.dropin.pipe_directory import ServedBy
from mpsguard.lanes.command import CommandFailedError

_DEADLINE: Final = 120.0
"""Seconds for an answer; a guard gives up earlier (`user_command_deadline`). `quit` waits for the clients to end."""

_NONE: Final = "Cannot find MPS control daemon process"
_RUNNING: Final = "An instance of this daemon is already running"
"""The vendor's own words, which scripts may look for."""


def main() -> None:
    """Run the program with the arguments and the environment of this process."""
    sys.exit(_run(sys.argv[1:]))


def _run(arguments: Sequence[str]) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(
        prog="nvidia-cuda-mps-control",
        description="mpsguard in the place of the MPS control daemon. Without an option: send COMMAND, or each line of "
        "standard input, to the daemon of CUDA_MPS_PIPE_DIRECTORY.",
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument("-d", dest="background", action="store_true", help="start a guard in the background")
    start.add_argument("-f", dest="foreground", action="store_true", help="start a guard in the foreground")
    parser.add_argument("-M", dest="multiuser", action="store_true", help="one server for all users (with -d or -f)")
    parser.add_argument("-v", "--version", action="version", version=f"mpsguard {mpsguard.__version__}")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a command of the control daemon, such as quit")
    given = parser.parse_args(arguments)
    if given.background or given.foreground:
        if given.command:
            parser.error("a command and -d or -f: one of them")
        return _start(foreground=given.foreground, multiuser=given.multiuser)
    if given.multiuser:
        parser.error("-M: only with -d or -f")
    try:
        return _send([" ".join(given.command)] if given.command else None)
    except KeyboardInterrupt:
        return 130


def _send(given: Sequence[str] | None) -> int:
    """Send commands, by default the lines of standard input, print the replies, and return the last exit status."""
    directory = pipes.pipe_directory(os.environ)
    # Bytes: a command is passed on as it is, and the last one may lack its newline.
    lines = given if given is not None else (line.decode(errors="surrogateescape") for line in sys.stdin.buffer)
    status = 0
    try:
        if pipes.look(directory) is ServedBy.NONE:
            return _fail(_NONE)
        for line in lines:
            command = line.removesuffix("\n")
            reply = pipes.ask(directory, command, None if command.split()[:1] == ["quit"] else _DEADLINE)
            for said in reply.lines:
                sys.stdout.buffer.write(said.encode(errors="surrogateescape") + b"\n")
            sys.stdout.buffer.flush()
            status = reply.exit_status
    except CommandFailedError as error:
        return _fail(str(error))
    except BrokenPipeError:
        # Else the interpreter would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _start(*, foreground: bool, multiuser: bool) -> int:
    """Start a guard unless one serves the directory already; return the exit status."""
    # Only here: a health check that sends a command shall not load them.
    try:
        from mpsguard.config import ConfigError  # noqa: PLC0415
        from mpsguard.dropin import keeper_start, own_guard  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mpsguard"):
            raise
        from mpsguard.extras import how_to_install  # noqa: PLC0415 - as above

        return _fail(f"a guard needs {error.name}: {how_to_install('daemon')}")

    directory = pipes.pipe_directory(os.environ)
    try:
        served = pipes.look(directory)
        if served is ServedBy.GUARD:
            print(f"mpsguard serves {directory} already", file=sys.stderr)  # noqa: T201 - a command line's word
            return 0
        if served is ServedBy.STOCK:
            return _fail(f"{_RUNNING}: {directory} is served by the vendor's")
        config = own_guard.prepare(os.environ, multiuser=multiuser)
        if foreground:
            keeper_start.become(config)
        keeper_start.in_background(config, pipes.log_directory(os.environ) / "mpsguard.log")
        own_guard.link_logs(config)
    except (CommandFailedError, ConfigError, keeper_start.KeeperStartError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or directory}: {error.strerror}")
    return 0


def _fail(message: str) -> int:
    print(message, file=sys.stderr)  # noqa: T201 - as above
    return 1


if __name__ == "__main__":
    main()
