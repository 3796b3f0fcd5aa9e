"""`mps-control-daemon`: in the place of the program of that name in the image of NVIDIA's device plugin."""

import argparse
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

try:
    import setproctitle
except ModuleNotFoundError as error:
    from mpsguard.linux.extras import how_to_install

    raise SystemExit(f"mps-control-daemon: it needs {error.name}: {how_to_install('device-plugin')}") from None

import psutil

from mpsguard.guard.dropin import nvidia_smi, plugin_config
from mpsguard.guard.dropin.nvidia_smi import NvidiaSmiError
from mpsguard.guard.dropin.plugin_config import PluginConfigError
from mpsguard.guard.dropin.resource_service import Mode, ResourceService, ServiceError
from mpsguard.guard.lanes.command import CommandFailedError
from mpsguard.linux.files.directory import Directory

_MOUNTED_WITHIN: Final = 30.0
_RETRY: Final = 30.0
"""Seconds until another start after one that failed, as the plugin's own daemon has it."""
_LOOK: Final = 15.0
"""Seconds between two looks at how the resource stands."""
_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
_MODES: Final = tuple(each.value for each in Mode)
_COMPUTE_MODES: Final = ("exclusive", "leave")


class MountError(Exception):
    """It cannot be mounted; one line says why."""


def mount_shared_memory(root: Path, *, on_host: bool) -> None:
    """Provide the clients' shared memory as ``shm`` below ``root``; raises MountError.

    Args:
        root: The root of the directories that MPS shares with its clients.
        on_host: Whether the servers run on the host. They and the clients have to use the same memory, which is the
            host's /dev/shm then: the host mounts it here, and it stays. Otherwise a tmpfs of half the machine's memory
            is mounted, in place of one that is there.
    """
    directory = root / "shm"
    if on_host:
        if not os.path.ismount(directory):
            raise MountError(f"{directory}: the host has to mount its /dev/shm there (docs/guides/drop-ins.md)")
        return
    if os.path.ismount(directory):
        _run("umount", str(directory))
    Directory.make(directory, 0o755).close()
    size = psutil.virtual_memory().total // 1024 // 2
    _run("mount", "-t", "tmpfs", "-o", f"rw,nosuid,nodev,noexec,relatime,size={size}k", "shm", str(directory))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_MOUNTED_WITHIN, check=False)
    if done.returncode != 0:
        raise MountError(f"{' '.join(command)}: {' '.join(done.stderr.split())}")


class _Signals:
    """The signals that this process got, to be waited for; its children get none of the handling."""

    def __init__(self) -> None:
        self._read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)

    def wait(self, seconds: float | None) -> signal.Signals | None:
        """Return the next one; None if there is none within ``seconds``."""
        if not select.select([self._read], [], [], seconds)[0]:
            return None
        return signal.Signals(os.read(self._read, 1)[0])


class Daemon:
    """The daemon of one node: starts what the plugin's configuration says, again where that fails, until a signal."""

    def __init__(
        self, root: Path, config: Path | None, mode: Mode, *, exclusive: bool, say: Callable[[str], None]
    ) -> None:
        self._root = root
        self._config = config
        self._mode = mode
        self._exclusive = exclusive
        self._say = say
        self._signals = _Signals()
        self._service: ResourceService | None = None
        self._left_out: frozenset[str] = frozenset()
        """Lines of nvidia-smi about GPUs that are not served, which have been said."""

    def run(self) -> None:
        """Serve until SIGTERM; raises PluginConfigError if the configuration is wrong at the start."""
        while True:
            try:
                self._start()
            except (CommandFailedError, NvidiaSmiError, ServiceError) as error:
                self._say(f"not started, again in {_RETRY:g} s: {error}")
                self._stop()
                got = self._signals.wait(_RETRY)
            except PluginConfigError as error:
                if self._service is None:
                    raise
                self._say(f"the configuration stays as it was: {error}")
                got = self._attend()
            else:
                got = self._attend()
            if got not in (None, signal.SIGHUP):
                self._stop()
                return

    def _start(self) -> None:
        """Bring the node to what the configuration says. What serves the same resource already only gets its limits."""
        config = plugin_config.load(self._config)
        for key in config.passed_over:
            self._say(f"without effect: {key}")
        resource = plugin_config.resource(config, self._gpus() if config.wanted is not None else [])
        serving = self._service
        if serving is not None and (resource is None or serving.resource.name != resource.name or serving.ended()):
            self._stop()
        self._ready.unlink(missing_ok=True)
        if resource is None:
            self._say("no GPU is configured for MPS: waiting")
        elif self._service is None:
            self._service = ResourceService(self._root, resource, self._mode, exclusive=self._exclusive)
            self._service.start()
        else:
            self._service.limit(resource)
        if resource is not None:
            self._say(f"{resource.name}: {len(resource.uuids)} GPU(s), {resource.percentage} % of the SMs for a client")
        self._ready.touch()

    def _gpus(self) -> list[plugin_config.Gpu]:
        others: list[str] = []
        found = nvidia_smi.gpus(others.append)
        for line in others:
            if line not in self._left_out:
                self._say(f"not served, says nvidia-smi: {line}")
        self._left_out = frozenset(others)
        return found

    def _attend(self) -> signal.Signals | None:
        """Wait for a signal, and report changes; None if the guard has ended."""
        if self._service is None:
            return self._signals.wait(None)
        before = ""
        while True:
            state = self._service.state()
            if state != before:
                self._say(f"{self._service.resource.name}: {state}")
                before = state
            if self._service.ended():
                return None
            got = self._signals.wait(_LOOK)
            if got is not None:
                return got

    def _stop(self) -> None:
        self._ready.unlink(missing_ok=True)
        service, self._service = self._service, None
        if service is not None:
            try:
                service.stop()
            except ServiceError as error:
                self._say(f"stopping: {error}")

    @property
    def _ready(self) -> Path:
        return self._root / ".ready"


def main() -> None:
    """Run the program with the arguments and the environment of this process."""
    parser = argparse.ArgumentParser(
        prog="mps-control-daemon",
        description="mpsguard in the place of the MPS control daemon of NVIDIA's device plugin.",
    )
    parser.add_argument("command", nargs="?", choices=["mount-shm"], help="mount the clients' /dev/shm, and end")
    # The plugin's own takes its options with one dash as well.
    parser.add_argument("--config-file", "-config-file", type=Path, default=os.environ.get("CONFIG_FILE") or None)
    mig = os.environ.get("MIG_STRATEGY", "none")
    parser.add_argument("--mig-strategy", "-mig-strategy", default=mig, help="MIG devices are left out")
    parser.add_argument("--root", type=Path, default=os.environ.get("MPS_ROOT") or "/mps")
    parser.add_argument(
        "--mode", choices=[each.value for each in Mode], default=os.environ.get("MPSGUARD_MODE") or "host"
    )
    parser.add_argument(
        "--compute-mode",
        choices=_COMPUTE_MODES,
        default=os.environ.get("MPSGUARD_COMPUTE_MODE") or _COMPUTE_MODES[0],
        help="leave: for a domain with a second lane",
    )
    given = parser.parse_args()
    # argparse does not check what comes from the environment.
    for name, value, allowed in (
        ("MPSGUARD_MODE", given.mode, _MODES),
        ("MPSGUARD_COMPUTE_MODE", given.compute_mode, _COMPUTE_MODES),
    ):
        if value not in allowed:
            parser.error(f"{name}: {value!r} is none of {', '.join(allowed)}")
    # Interpreter and script would be the first words of the command line otherwise; config-manager sends SIGHUP to the
    # process with this one.
    setproctitle.setproctitle(str(Path(sys.argv[0]).absolute()))
    try:
        if given.command is not None:
            mount_shared_memory(given.root, on_host=given.mode == Mode.HOST)
            return
        Directory.make(given.root, 0o755).close()
        exclusive = given.compute_mode == _COMPUTE_MODES[0]
        Daemon(given.root, given.config_file, Mode(given.mode), exclusive=exclusive, say=_say).run()
    except (MountError, PluginConfigError) as error:
        sys.exit(f"mps-control-daemon: {error}")
    except OSError as error:
        sys.exit(f"mps-control-daemon: {error.filename or given.root}: {error.strerror}")


def _say(text: str) -> None:
    with suppress(BrokenPipeError):
        print(f"mps-control-daemon: {text}", flush=True)  # noqa: T201 - the pod's log


if __name__ == "__main__":
    main()
