"""Helper processes: how each is started, what it inherits, and the owner that ends it.

A helper imports from where its parent does, and never from a working directory. If the parent runs with ``-I``, as
installed programs do, so does the helper: PYTHONPATH and a user's own site-packages count for neither. Otherwise they
count for both, since the parent, and perhaps msgspec, were found there; so the helper runs with ``-P`` then.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

_RUN_MODULE: Final = str(Path(__file__).absolute().with_name("run_module.py"))
_FOR_HELPERS: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
_FOR_PYTHON: Final = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE")
_NOT_FOR_CHILDREN: Final = (
    "CUDA_MPS_PIPE_DIRECTORY",
    "LD_PRELOAD",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
)
"""Variables of a program that would make its helper a client of the lane, or a service of its own."""
_OWN_PREFIX: Final = "MPSGUARD_"


def module_command(module: str, *arguments: str, imports_users_code: bool = False) -> list[str]:
    """Return the command that runs a module of this package.

    It has the isolation of this process, unless it ``imports_users_code``, for which the user's PYTHONPATH is meant.
    """
    isolated = sys.flags.isolated and not imports_users_code
    # A keeper lives on while another version is installed. For another Python its files are elsewhere, and -m finds it.
    run = _RUN_MODULE if Path(_RUN_MODULE).exists() else "-m"
    return [sys.executable, "-I" if isolated else "-P", run, module, *arguments]


def service_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the few variables that a helper of a service gets."""
    names = _FOR_HELPERS if sys.flags.isolated else (*_FOR_HELPERS, *_FOR_PYTHON)
    return {name: inherited[name] for name in names if name in inherited}


def user_environment(inherited: Mapping[str, str], *, but: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment of a helper that uses CUDA for a program: all but what is the program's own.

    CUDA, its libraries and the frameworks read variables that no list would be complete with.
    """
    dropped = (*_NOT_FOR_CHILDREN, *but)
    return {
        name: value for name, value in inherited.items() if name not in dropped and not name.startswith(_OWN_PREFIX)
    }


class HelperProcess:
    """Owns a child process, and its pidfd until the process has been reaped. For any thread."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        fds: Sequence[int] = (),
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = subprocess.DEVNULL,
        stderr: int | None = subprocess.DEVNULL,
        directory: str | None = "/",
        own_session: bool = True,
    ) -> None:
        """Start it; raise OSError.

        Args:
            command: `module_command`, or a program.
            environment: all of it.
            fds: inherited under their numbers; they stay owned by the caller.
            stdin: a descriptor, or as in `subprocess`.
            stdout: the same; None: that of this process.
            stderr: the same.
            directory: where it works; None: where this process does. It keeps no file system from being unmounted
                in ``/``, and imports nothing from there.
            own_session: whether signals of this process' terminal and group do not reach it.
        """
        if directory is not None and (path := environment.get("PYTHONPATH")):
            environment = {**environment, "PYTHONPATH": _absolute(path)}
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            list(command),
            env=dict(environment),
            cwd=directory,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=tuple(fds),
            start_new_session=own_session,
        )
        self.pid: Final = self._process.pid
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    @property
    def output(self) -> IO[bytes]:
        """Its standard output, if that is a pipe."""
        assert self._process.stdout is not None
        return self._process.stdout

    def poll(self) -> int | None:
        """Return its exit status; None while it lives."""
        return self._reaped(self._process.poll())

    def wait(self, seconds: float | None = None) -> int | None:
        """Return its exit status; None if it still lives after so many seconds (None: no limit)."""
        try:
            return self._reaped(self._process.wait(seconds))
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send it SIGKILL."""
        self._process.kill()

    def end(self, patience: float, dying: float) -> bool:
        """Wait for its end, by SIGKILL after ``patience`` seconds; return False if it lives ``dying`` seconds later."""
        if self.wait(patience) is not None:
            return True
        self.kill()
        return self.wait(dying) is not None

    def abandon(self) -> None:
        """Kill it and leave it to init, since it may be blocked: it is not waited for."""
        self._process.kill()
        self._process.returncode = self._reaped(-9)

    def _reaped(self, status: int | None) -> int | None:
        if status is not None:
            with self._lock:
                pidfd, self.pidfd = self.pidfd, -1
            if pidfd >= 0:
                os.close(pidfd)
        return status


def _absolute(path: str) -> str:
    """Return a PYTHONPATH that means the same in another directory."""
    return os.pathsep.join(os.path.abspath(each) for each in path.split(os.pathsep) if each)  # noqa: PTH100
