"""Starting a keeper: in the background, or in the place of this process."""

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from mpsguard.dropin import own_guard

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


def in_background(config: Path, log: Path, *, new_session: bool = True) -> subprocess.Popen[bytes]:
    """Start a keeper and return once its guard serves every domain.

    Args:
        config: The guard's configuration file.
        log: Where keeper and guard write.
        new_session: Whether it leaves the caller's session, as a daemon does.

    Raises:
        KeeperStartError: the guard does not serve, and the keeper has been told to end.
        OSError: the log cannot be written.
    """
    log.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    told, tells = os.pipe()
    try:
        try:
            with log.open("ab") as out:
                keeper = subprocess.Popen(
                    [*_program(config), "--tell", str(tells)],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    pass_fds=(tells,),
                    cwd="/",
                    env=_environment(),
                    start_new_session=new_session,
                )
        finally:
            os.close(tells)
        said = _read(told)
    finally:
        os.close(told)
    if said != READY:
        keeper.terminate()
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(_END)
        reason = said.decode(errors="replace").strip() or f"it ended, or was not ready within {_START:g} s"
        raise KeeperStartError(f"the guard does not serve: {reason} (see {log})")
    return keeper


def become(config: Path) -> NoReturn:
    """Run the keeper in the place of this process."""
    program = _program(config)
    os.chdir("/")
    os.execve(program[0], program, _environment())  # noqa: S606 - no shell is wanted


def _program(config: Path) -> list[str]:
    return [sys.executable, "-m", "mpsguard.dropin.keeper", "--config", str(config)]


def _environment() -> dict[str, str]:
    return {"PATH": _PATH, **os.environ, own_guard.CHAIN: "1"}


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
