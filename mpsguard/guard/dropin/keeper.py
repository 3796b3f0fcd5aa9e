"""The keeper: holds a guard's public sockets and starts the guard again when it dies, where no service manager does.

Clients that come while no guard runs wait in the sockets. Run as ``python -m mpsguard.guard.dropin.keeper``.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from mpsguard.guard import config
from mpsguard.guard.broker import public_directory, public_sockets
from mpsguard.guard.broker.public_sockets import MODES
from mpsguard.guard.config import Config, ConfigError
from mpsguard.guard.dropin import pipe_directory as pipes
from mpsguard.guard.dropin.keeper_log import KeeperLog
from mpsguard.guard.dropin.keeper_start import READY
from mpsguard.guard.lanes import command as commands
from mpsguard.guard.lanes.command import Command, CommandFailedError
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.processes.helper_process import module_command
from mpsguard.linux.sockets.bound_file import is_reached
from mpsguard.linux.sockets.listens import listens
from mpsguard.linux.systemd import handover
from mpsguard.linux.systemd.handover import Handover
from mpsguard.linux.tasks import beside

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


class HeldSockets:
    """Owns the public sockets of all domains."""

    def __init__(self, settings: Config) -> None:
        """Listen.

        Raises:
            ConfigError: a process serves one of the directories.
            OSError: one cannot be made, or another user could change it.
        """
        self._listeners: dict[Path, socket.socket] = {}
        try:
            for domain in settings.domain:
                directory = Path(domain.pipe_directory)
                if pipes.is_served(directory):
                    raise ConfigError(f"{directory}: a process serves it already")
                for name in MODES:
                    self._listen(directory / name)
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> dict[int, str]:
        """The names of the sockets, by descriptor."""
        return {listener.fileno(): path.name for path, listener in self._listeners.items()}

    def listen_again(self) -> None:
        """Make again what a path does not lead to any more, unless another process listens there; no guard runs."""
        for path, listener in list(self._listeners.items()):
            if not is_reached(listener, path) and not listens(path):
                # What cannot be made, the next guard says.
                with suppress(OSError):
                    self._listen(path)
                    public_sockets.close(listener)

    def close(self) -> None:
        """Close them; their files stay."""
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()

    def _listen(self, path: Path) -> None:
        with public_directory.make(path.parent) as made:
            self._listeners[path] = public_sockets.listen(made, path.name)


class Keeper:
    """Owns the public sockets of a configuration, and the guard that serves them."""

    def __init__(self, path: Path, settings: Config, tell: int | None, log: KeeperLog | None) -> None:
        """Create it.

        Args:
            path: The configuration file.
            settings: What is in it.
            tell: A descriptor for `READY`, or for one line that says why the guard does not serve.
            log: What this process and the guard write to, if that is a file of their own.
        """
        self._log = log
        self._path = path
        self._settings = settings
        self._tell = tell
        self._stopping = asyncio.Event()
        self._was_ready = False
        below = any(path.is_relative_to(each.pipe_directory) for each in settings.domain)
        self._text = path.read_bytes() if below else None
        """The configuration, where it lies in a directory of its own guard and so may go with it."""

    async def run(self, held: HeldSockets) -> int:
        """Run guards until one ends in order or this process is told to end; return the exit status."""
        async with beside(*([] if self._log is None else [self._log.keep_small()])):
            return await self._run(held)

    async def _run(self, held: HeldSockets) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        while True:
            program = module_command("mpsguard.cli.guard", "serve", "--config", str(self._path))
            pid = handover.start(program, os.environ, Handover(held.names, {}), own_group=True)
            loop.add_signal_handler(signal.SIGHUP, os.kill, pid, signal.SIGHUP)
            status = await self._attend(pid)
            loop.remove_signal_handler(signal.SIGHUP)
            self._stand_again(held)
            if self._stopping.is_set():
                return 0
            if status == 0 or (not self._was_ready and status in (_CONFIG_EXIT, _START_EXIT)):
                self._say(f"ended with status {status}")
                return status
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _PAUSE)
            if self._stopping.is_set():
                return 0

    def _stand_again(self, held: HeldSockets) -> None:
        """Make what the next guard needs and what has been removed; clients wait in the sockets meanwhile."""
        held.listen_again()
        if self._text is not None and not self._path.exists():
            with suppress(OSError), Directory.make(self._path.parent, 0o711) as directory:
                directory.write(self._path.name, self._text, 0o600)

    async def _attend(self, pid: int) -> int:
        """Wait for the end of one guard, which is asked for where this process is told to end; return its status."""
        async with beside(_exit_status(pid), self._stopping.wait(), self._serves()) as (ended, stopping, ready):
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
            status: int = await ended
            return status

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


def main(arguments: Sequence[str] | None = None) -> None:
    """Keep a guard until it ends in order, or SIGTERM."""
    parser = argparse.ArgumentParser(prog="mpsguard.guard.dropin.keeper", description="Keeps a guard running.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--tell", type=int)
    parser.add_argument("--older-log", type=int, help="standard error is a log that is cut into this file")
    given = parser.parse_args(arguments)
    log = None
    if given.older_log is not None:
        log = KeeperLog(sys.stderr.fileno(), given.older_log)
        os.set_inheritable(given.older_log, False)
    if given.tell is not None:
        os.set_inheritable(given.tell, False)
    try:
        settings = config.load(given.config)
        with closing(HeldSockets(settings)) as held:
            keeper = Keeper(given.config, settings, given.tell, log)
            sys.exit(asyncio.run(keeper.run(held)))
    except (ConfigError, OSError) as error:
        reason = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        if given.tell is not None:
            os.write(given.tell, f"{reason}\n".encode())
        sys.exit(f"mpsguard: {reason}")


if __name__ == "__main__":
    main()
