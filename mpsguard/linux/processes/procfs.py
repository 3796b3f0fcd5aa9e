"""What /proc says of a process. Everything read here was written by a stranger: it is cut and made printable.

Not psutil's: a process is known here by its start time in ticks, as the kernel writes it (psutil gives seconds since
the epoch, which move when the clock is set), and the bytes of a file may have been read by another process, which can
be killed when a read does not end (`process_reader`).
"""

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from mpsguard.linux.cgroup_origin import origin
from mpsguard.linux.identity import ProcessKey

_PROC: Final = Path("/proc")
_STATE, _START_TIME, _START_CODE, _START_STACK = 0, 19, 23, 25
"""Indexes of fields 3, 22, 26 and 28 of /proc/PID/stat behind the parenthesised command (proc_pid_stat(5))."""

_CONTAINER_ID: Final = re.compile(r"(?:^|[/:._-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
"""Docker, containerd, CRI-O and Podman put the 64 hex digits of the container's id into its cgroup path."""

MAX_COMMAND: Final = 256
"""Characters kept of a command line."""

_PAGE: Final = 4096
_MAX_ENVIRON: Final = 1 << 20


def read_short(path: str) -> bytes:
    """Read a file of at most 4 KiB under /proc, with three system calls.

    pathlib makes nine. Python gives up the interpreter's lock for each, and beside busy threads the event loop waits
    for it, by the switch interval (0.5 ms, `mpsguard.cli.serve`) at worst.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _PAGE)
    finally:
        os.close(fd)


class Stat(NamedTuple):
    """What the line of /proc/PID/stat says."""

    state: bytes
    """A letter (proc(5))."""
    start_ticks: int
    image: tuple[int, int] | None
    """Where program and stack begin, which each exec chooses anew; None if we may not know (CAP_SYS_PTRACE)."""


def stat_of(line: bytes) -> Stat:
    """Take the line of /proc/PID/stat apart."""
    # The command may hold spaces and parentheses: count from the last one.
    fields = line[line.rindex(b")") + 2 :].split()
    image = int(fields[_START_CODE]), int(fields[_START_STACK])
    # What a process may not see of another is shown as 0 or 1 (fs/proc/array.c).
    return Stat(fields[_STATE], int(fields[_START_TIME]), image if min(image) > 1 else None)


def process_key(pid: int) -> ProcessKey:
    """The identity of the process that holds ``pid`` now; ProcessLookupError if there is none.

    May last as long as the process decides (`stat_reader`): of strangers' processes not for an event loop.
    """
    try:
        stat = read_short(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"no process {pid}") from None
    return ProcessKey(pid, stat_of(stat).start_ticks)


def state(pid: int) -> str | None:
    """The state of the process that holds ``pid`` now (proc(5)), a letter; None if there is none. Never waits."""
    try:
        words = status_of(read_short(f"/proc/{pid}/status")).get("State", [])
    except (FileNotFoundError, ProcessLookupError):
        return None
    return words[0] if words else None


def parent(pid: int) -> int | None:
    """The parent of the process that holds ``pid`` now; None if there is no such process. Never waits."""
    try:
        words = status_of(read_short(f"/proc/{pid}/status")).get("PPid", [])
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(words[0]) if words else None


def command(pid: int) -> str:
    """The command line, arguments joined by spaces, printable, at most MAX_COMMAND characters; "" if unreadable."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()[: MAX_COMMAND * 4]
    except OSError:
        return ""
    return command_of(raw)


def command_of(cmdline: bytes) -> str:
    """The same of the bytes of ``cmdline``."""
    return printable(cmdline[: MAX_COMMAND * 4].replace(b"\0", b" ").decode(errors="replace").strip())[:MAX_COMMAND]


def printable(text: str) -> str:
    """``text`` with every control character, newlines and terminal escapes among them, replaced by a question mark."""
    return "".join(c if c.isprintable() else "?" for c in text)


def environment(pid: int) -> dict[str, str]:
    """The environment the process was started with; empty if unreadable. The process may have overwritten it."""
    try:
        with (_PROC / str(pid) / "environ").open("rb") as file:
            raw = file.read(_MAX_ENVIRON)
    except OSError:
        return {}
    return environment_of(raw)


def environment_of(environ: bytes) -> dict[str, str]:
    """The variables in the bytes of ``environ``."""
    pairs = (entry.decode(errors="replace").partition("=") for entry in environ.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


def cgroup_of(text: bytes) -> str:
    """The path in the bytes of ``cgroup`` that tells what made the group (`origin`), of whatever hierarchy.

    With cgroup v1, and in a hybrid of both versions, Slurm and runtimes make their groups in the hierarchies of the
    controllers that they use, and a client may be in its service in all others. If none tells, the unified hierarchy's,
    else systemd's named one's, or the first.
    """
    paths = cgroup_paths(text)
    unified = paths.get("", "/")
    named = (paths[name] for name in ("name=systemd", "memory", "pids") if name in paths)
    usual = unified if unified != "/" else next(named, unified)
    return printable(next((path for path in (usual, *paths.values()) if any(origin(path))), usual))


def cgroup_paths(text: bytes) -> dict[str, str]:
    """The paths in the bytes of ``cgroup``, by the controllers of their hierarchies; as they are, not printable."""
    # Names are their makers' words, and hold everything but newlines.
    lines = (line.split(":", 2) for line in text.decode(errors="replace").split("\n") if line.count(":") > 1)
    return {controllers: path for _, controllers, path in lines}


def status_of(text: bytes) -> dict[str, list[str]]:
    """The words of each line in the bytes of ``status``, by its name.

    The first line has the process's own word for itself, which holds everything but newlines.
    """
    lines = (line.partition(":") for line in text.decode(errors="replace").split("\n"))
    return {name: words.split() for name, _, words in lines}


def container(cgroup_path: str) -> str | None:
    """The container id in a cgroup path, or None."""
    found = _CONTAINER_ID.findall(cgroup_path)
    return found[-1] if found else None


def uid(pid: int) -> tuple[int, int]:
    """The real uid and gid of a process; ProcessLookupError if there is none."""
    try:
        found = status_of(read_short(f"/proc/{pid}/status"))
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"no process {pid}") from None
    return int(found["Uid"][0]), int(found["Gid"][0])
