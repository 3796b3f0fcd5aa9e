"""The keeper: holds a guard's public sockets and starts the guard again when it dies, where no service manager does.

Clients that come while no guard runs wait in the sockets. Run as ``python -m mpsguard.dropin.keeper``.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from mpsguard import config
from mpsguard.broker.public_directory import MODES
from mpsguard.config import Config, ConfigError
from mpsguard.dropin import pipe_directory as pipes
from mpsguard.dropin.keeper_start import READY
from mpsguard.lanes import command as commands
from mpsguard.lanes.command import Command, CommandFailedError
from mpsguard.linux.sockets import seqpacket
from mpsguard.linux.systemd import handover
from mpsguard.linux.systemd.handover import Handover

_BACKLOG: Final = 4096
_PAUSE: Final = 0.5
"""Seconds between two starts of the guard, as in mpsguard.service."""
_CONFIG_EXIT: Final = 2
"""The guard's exit status for a mistake in its configuration."""
_START_EXIT: Final = 1
_GUARD_START: Final = 10.0
"""Seconds for the guard's own start; about one on an idle machine."""
_STOP: Final = 15.0
"""Seconds that the guard has to end, as in mpsguard.service; then it is killed. Its lanes live on."""
_QUESTION: Final = Command("get_default_active_thread_percentage")
"""A guard answers it once the lane's control daemon does."""


class Keeper:
    """Owns the public sockets of a configuration, and the guard that serves them."""

    def __init__(self, path: Path, settings: Config, tell: int | None) -> None:
        """``tell``: a descriptor for `READY`, or for one line that says why the guard does not serve."""
        self._path = path
        self._settings = settings
        self._tell = tell
        self._stopping = asyncio.Event()
        self._was_ready = False

    async def run(self, listeners: dict[int, str]) -> int:
        """Run guards until one ends in order or this process is told to end; return the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        while True:
            program = [sys.executable, "-m", "mpsguard.cli.guard", "serve", "--config", str(self._path)]
            pid = handover.start(program, os.environ, Handover(listeners, {}), own_group=True)
            loop.add_signal_handler(signal.SIGHUP, os.kill, pid, signal.SIGHUP)
            status = await self._attend(pid)
            loop.remove_signal_handler(signal.SIGHUP)
            if self._stopping.is_set():
                return 0
            if status == 0 or (not self._was_ready and status in (_CONFIG_EXIT, _START_EXIT)):
                self._say(f"ended with status {status}")
                return status
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _PAUSE)
            if self._stopping.is_set():
                return 0

    async def _attend(self, pid: int) -> int:
        """Wait for the end of one guard, which is asked for where this process is told to end; return its status."""
        ended = asyncio.create_task(_exit_status(pid))
        stopping = asyncio.create_task(self._stopping.wait())
        ready = asyncio.create_task(self._serves())
        try:
            await asyncio.wait({ended, stopping, ready}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done() and not ready.result():
                self._say("its lane does not answer")
            elif ready.done():
                self._was_ready = True
                self._say(READY.decode().strip())
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                os.kill(pid, signal.SIGTERM)
                if not (await asyncio.wait({ended}, timeout=_STOP))[0]:
                    os.kill(pid, signal.SIGKILL)
            return await ended
        finally:
            for task in (stopping, ready):
                task.cancel()

    async def _serves(self) -> bool:
        """Return whether every domain answers, once each has: what is asked before waits in the sockets."""
        for domain in self._settings.domain:
            try:
                # The guard answers no command before the lane is up, or has had its time.
                deadline = domain.policy.start_deadline + _GUARD_START
                await commands.ask(Path(domain.pipe_directory), _QUESTION, deadline)
            except CommandFailedError:
                return False
        return True

    def _say(self, text: str) -> None:
        """Tell the process that started this one, once."""
        if self._tell is not None:
            with suppress(OSError):
                os.write(self._tell, f"{text}\n".encode())
            os.close(self._tell)
            self._tell = None


async def _exit_status(pid: int) -> int:
    """Return a child's exit status, or minus the signal that ended it."""
    loop = asyncio.get_running_loop()
    pidfd = os.pidfd_open(pid)
    over = asyncio.Event()
    loop.add_reader(pidfd, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
    # It has ended: this does not wait.
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])  # noqa: ASYNC222


@contextmanager
def _held(settings: Config) -> Iterator[dict[int, str]]:
    """Hold the public sockets of all domains, by descriptor, with their names.

    Raises:
        ConfigError: a process serves one of the directories.
        OSError: one cannot be made.
    """
    with ExitStack() as stack:
        listeners = {}
        for domain in settings.domain:
            directory = Path(domain.pipe_directory)
            if pipes.is_served(directory):
                raise ConfigError(f"{directory}: a process serves it already")
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            for name, mode in MODES.items():
                (directory / name).unlink(missing_ok=True)
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
                stack.enter_context(listener)
                seqpacket.let_descriptors_come(listener, allowed=False)
                listener.bind(str(directory / name))
                (directory / name).chmod(mode)
                listener.listen(_BACKLOG)
                listeners[listener.fileno()] = name
        yield listeners


def main(arguments: Sequence[str] | None = None) -> None:
    """Keep a guard until it ends in order, or SIGTERM."""
    parser = argparse.ArgumentParser(prog="mpsguard.dropin.keeper", description="Keeps a guard running.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--tell", type=int)
    given = parser.parse_args(arguments)
    if given.tell is not None:
        os.set_inheritable(given.tell, False)
    try:
        settings = config.load(given.config)
        with _held(settings) as listeners:
            keeper = Keeper(given.config, settings, given.tell)
            sys.exit(asyncio.run(keeper.run(listeners)))
    except (ConfigError, OSError) as error:
        if given.tell is not None:
            os.write(given.tell, f"{error}\n".encode())
        sys.exit(f"mpsguard: {error}")


if __name__ == "__main__":
    main()
