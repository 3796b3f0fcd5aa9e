"""Start a program with descriptors handed over by systemd's protocol (sd_listen_fds(3)).

LISTEN_PID is the new process' own pid, so it cannot be set before there is one: fork, and exec there.
"""

import fcntl
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

_FIRST_FD: Final = 3
_ERRNO_BYTES: Final = 4
_DEFAULT_AGAIN: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Ignored by Python's own choice, which is none of the program's."""


class Handover(NamedTuple):
    """What a new process gets; the descriptors stay the caller's."""

    listeners: Mapping[int, str]
    """Descriptors and their names, which must not contain a colon."""
    private: Mapping[str, int]
    """Other descriptors, by the environment variable that is to have their number."""


def start(arguments: Sequence[str], environment: Mapping[str, str], handover: Handover, *, own_group: bool) -> int:
    """Start a program, found as a shell finds it, and return its pid; OSError if it cannot be.

    Descriptors without close-on-exec are its too, unless listeners take their numbers, from 3 on. With ``own_group`` it
    leads a process group.
    """
    told, tells = os.pipe()
    # A signal that came between fork and exec would go through our own handlers, and so to ourselves.
    before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            try:
                if own_group:
                    os.setpgid(0, 0)
                _become(arguments, environment, handover, tells, before)
            finally:
                # Nothing of the parent's is run here: no handler at exit, no finally further up.
                os._exit(127)
    except BaseException:
        os.close(told)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(tells)
    try:
        error = os.read(told, _ERRNO_BYTES)
    finally:
        os.close(told)
    if error:
        os.waitpid(pid, 0)
        number = int.from_bytes(error, "little")
        raise OSError(number, os.strerror(number), arguments[0])
    return pid


def _become(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    handover: Handover,
    tells: int,
    mask: Iterable[int],
) -> None:
    """Never returns but by an exception, or by an error that ``tells`` has told."""
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if number in _DEFAULT_AGAIN or handler not in (signal.SIG_DFL, signal.SIG_IGN, None):
            signal.signal(number, signal.SIG_DFL)
    variables = dict(environment)
    above = _FIRST_FD + len(handover.listeners)
    tells = fcntl.fcntl(tells, fcntl.F_DUPFD_CLOEXEC, above)
    for name, fd in handover.private.items():
        variables[name] = str(fcntl.fcntl(fd, fcntl.F_DUPFD, above))
    if handover.listeners:
        _place([fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in handover.listeners])
        variables["LISTEN_PID"] = str(os.getpid())
        variables["LISTEN_FDS"] = str(len(handover.listeners))
        variables["LISTEN_FDNAMES"] = ":".join(handover.listeners.values())
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvpe(arguments[0], list(arguments), variables)  # noqa: S606 - no shell is wanted
    except OSError as error:
        os.write(tells, (error.errno or 0).to_bytes(_ERRNO_BYTES, "little"))


def _place(fds: Sequence[int]) -> None:
    for index, fd in enumerate(fds):
        os.dup2(fd, _FIRST_FD + index, inheritable=True)
