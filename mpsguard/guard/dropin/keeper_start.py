"""Starting a keeper: in the background, or in the place of this process."""

import os
import select
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from mpsguard.guard.dropin import own_guard
from mpsguard.guard.dropin.keeper_log import KeeperLog
from mpsguard.linux.processes.helper_process import HelperProcess, module_command

READY: Final = b"ready\n"
"""What a keeper writes once its guard serves; anything else is why it does not."""

_START: Final = 60.0
"""Seconds until a guard serves: more than its lane's start deadline (30 s); about one on an idle machine."""
_END: Final = 20.0
"""Seconds for the end of a keeper that is told to end; its guard has 15."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where the vendor's programs are looked for if no PATH is set: the device plugin starts them without one."""


class KeeperStartError(Exception):
    """The guard does not serve; one line says why."""


def in_background(
    config: Path, log: Path, environment: Mapping[str, str], *, new_session: bool = True
) -> HelperProcess:
    """Start a keeper and return once its guard serves every domain.

    Args:
        config: The guard's configuration file.
        log: Where keeper and guard write.
        environment: Theirs, and so the lanes'.
        new_session: Whether it leaves the caller's session, as a daemon does.

    Raises:
        KeeperStartError: the guard does not serve, and the keeper has been told to end.
        OSError: the log cannot be written, or another user could change its directory.
    """
    files = KeeperLog.open(log)
    try:
        return _start(config, log, files, environment, new_session=new_session)
    finally:
        files.close()


def _start(
    config: Path, log: Path, files: KeeperLog, environment: Mapping[str, str], *, new_session: bool
) -> HelperProcess:
    told, tells = os.pipe()
    try:
        try:
            keeper = HelperProcess(
                [*_program(config), "--tell", str(tells), "--older-log", str(files.older)],
                _with_chain(environment),
                fds=(tells, files.older),
                stdout=files.log,
                stderr=files.log,
                own_session=new_session,
            )
        finally:
            os.close(tells)
        said = _read(told)
    finally:
        os.close(told)
    if said != READY:
        keeper.terminate()
        keeper.wait(_END)
        reason = said.decode(errors="replace").strip() or f"it ended, or was not ready within {_START:g} s"
        raise KeeperStartError(f"the guard does not serve: {reason} (see {log})")
    return keeper


def become(config: Path) -> NoReturn:
    """Run the keeper in the place of this process."""
    program = _program(config)
    os.chdir("/")
    os.execve(program[0], program, _with_chain(os.environ))  # noqa: S606 - no shell is wanted


def _program(config: Path) -> list[str]:
    return module_command("mpsguard.guard.dropin.keeper", "--config", str(config))


def _with_chain(environment: Mapping[str, str]) -> dict[str, str]:
    # The guard and its lanes are configured by variables too.
    return {"PATH": _PATH, **environment, own_guard.CHAIN: "1"}


def _read(told: int) -> bytes:
    """Return what the keeper says, at most one line, as far as it comes in time."""
    due = time.monotonic() + _START
    said = b""
    while not said.endswith(b"\n"):
        if not select.select([told], [], [], max(due - time.monotonic(), 0.0))[0]:
            break
        more = os.read(told, 4096)
        if not more:
            break
        said += more
    return said
