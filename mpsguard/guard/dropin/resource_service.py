"""One resource of a node under MPS: its directories, its guard, its limits, and the files that say how far it is."""

import os
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Final

from mpsguard.guard.config import ConfigError
from mpsguard.guard.dropin import keeper_start, nvidia_smi, own_guard
from mpsguard.guard.dropin import pipe_directory as pipes
from mpsguard.guard.dropin.nvidia_smi import NvidiaSmiError
from mpsguard.guard.dropin.pipe_directory import ServedBy
from mpsguard.guard.dropin.plugin_config import MpsResource
from mpsguard.guard.lanes import settings
from mpsguard.guard.lanes.command import CommandFailedError
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.processes.helper_process import HelperProcess

_LABEL: Final = b"system_u:object_r:container_file_t:s0"
_EXCLUSIVE: Final = "EXCLUSIVE_PROCESS"
_DEFAULT: Final = "DEFAULT"
_DEADLINE: Final = 30.0
"""Seconds for the answer to a command."""
_QUIT: Final = 10
"""Seconds that clients have to end after `quit`, of the 30 that a pod has."""
_STOP: Final = 20.0
"""Seconds for the guard's end after that."""


class Mode(StrEnum):
    """Where guard and lanes run."""

    HOST = "host"
    """On the host, under its service manager: the end of the pod harms no client."""
    SINGLE_CONTAINER = "single-container"
    """In the pod's container, and end with it."""


class ServiceError(Exception):
    """The resource cannot be served; one line says why."""


class ResourceService:
    """Serves one resource below ``root``; owns the guard's keeper in `Mode.SINGLE_CONTAINER`."""

    def __init__(self, root: Path, resource: MpsResource, mode: Mode, *, exclusive: bool) -> None:
        """``exclusive``: whether the compute mode is set, as the device plugin does."""
        self.resource = resource
        self.pipes = root / resource.name / "pipe"
        self._logs = root / resource.name / "log"
        self._started = root / resource.name / ".started"
        self._mode = mode
        self._exclusive = exclusive
        self._keeper: HelperProcess | None = None

    def start(self) -> None:
        """Start in the plugin's order: compute mode, guard, limits, `.started`. Raises ServiceError."""
        try:
            self._started.unlink(missing_ok=True)
            for directory in (self.pipes, self._logs):
                Directory.make(directory, 0o711).close()
            served = pipes.look(self.pipes)
            if self._mode is Mode.HOST and served is not ServedBy.GUARD:
                raise ServiceError(
                    f"{self.pipes} is served by {served.value}: on the host, give mpsguard a domain with this "
                    "directory (as the host names it), or set MPSGUARD_MODE=single-container"
                )
            if self._exclusive:
                nvidia_smi.set_compute_mode(self.resource.uuids, _EXCLUSIVE)
            if self._mode is Mode.SINGLE_CONTAINER and served is not ServedBy.GUARD:
                self._start_guard()
            _label(self.pipes)
            self.limit(self.resource)
            self._started.touch()
        except (CommandFailedError, ConfigError, NvidiaSmiError, keeper_start.KeeperStartError) as error:
            raise ServiceError(str(error)) from None
        except OSError as error:
            raise ServiceError(f"{error.filename or self.pipes}: {error.strerror}") from None

    def limit(self, resource: MpsResource) -> None:
        """Set the defaults of ``resource``, which is this one; raises CommandFailedError, ServiceError."""
        for command in resource.commands():
            reply = pipes.ask(self.pipes, command, _DEADLINE)
            asked = settings.asked_by(command)
            assert asked is not None
            if not settings.was_taken(asked, reply):
                raise ServiceError(f"{command}: {' '.join(reply.lines) or f'status {reply.exit_status}'}")
        self.resource = resource

    def state(self) -> str:
        """Return how it stands, in one line."""
        if self.ended():
            return "the guard has ended"
        try:
            servers = pipes.ask(self.pipes, "get_server_list", _DEADLINE).lines
            states = [
                f"server {server}: {' '.join(pipes.ask(self.pipes, f'get_server_status {server}', _DEADLINE).lines)}"
                for server in servers
            ]
        except CommandFailedError as error:
            return f"no answer: {error}"
        return f"served; {', '.join(states) or 'no server yet'}"

    def ended(self) -> bool:
        """Return whether its guard, if it is this container's, has ended."""
        return self._keeper is not None and self._keeper.poll() is not None

    def stop(self) -> None:
        """Stop in the plugin's order: quit, compute mode, files. On the host, guard and clients live on.

        Goes on past a step that fails, and raises ServiceError for the first one at the end.
        """
        problems = []
        if self._mode is Mode.SINGLE_CONTAINER:
            try:
                if pipes.look(self.pipes) is ServedBy.GUARD:
                    pipes.ask(self.pipes, f"quit -t {_QUIT}", _QUIT + _DEADLINE)
            except CommandFailedError as error:
                problems.append(str(error))
            self._end_keeper()
            if self._exclusive:
                try:
                    nvidia_smi.set_compute_mode(self.resource.uuids, _DEFAULT)
                except NvidiaSmiError as error:
                    problems.append(str(error))
            shutil.rmtree(self._logs, ignore_errors=True)
        self._started.unlink(missing_ok=True)
        if problems:
            raise ServiceError(problems[0])

    def _start_guard(self) -> None:
        # The plugin gives its daemon no variable of the container's.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        guard = own_guard.prepare(self.pipes, {**environment, pipes.LOGS: str(self._logs)}, multiuser=False)
        log = self._logs / "mpsguard.log"
        self._keeper = keeper_start.in_background(guard.config, log, environment, new_session=False)
        own_guard.link_logs(guard.config)

    def _end_keeper(self) -> None:
        if self._keeper is None:
            return
        # After quit it ends by itself.
        if self._keeper.wait(_STOP) is None:
            self._keeper.terminate()
            self._keeper.wait(_STOP)
        self._keeper = None


def _label(directory: Path) -> None:
    """Let containers use the directory under SELinux."""
    if not Path("/sys/fs/selinux/enforce").exists():
        return
    for path in (directory, *directory.rglob("*")):
        os.setxattr(path, "security.selinux", _LABEL, follow_symlinks=False)
