"""The stock control daemon as a process: start one, or prove that the one that runs is ours.

The proof never rests on a pid alone: the pid file is only a claim. What counts is the kernel's word on which process
holds the lock on ``control_lock`` and listens on ``control``, its start time, and the environment it was
started with.
"""

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.linux.files import file_lock
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import peer_user, procfs
from mpsguard.linux.processes.child import wait_or_kill
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.linux.sockets.packet_stream import PacketStream

PID_FILE: Final = "nvidia-cuda-mps-control.pid"
"""Written by driver 580 and later; 535 writes none."""

_GOVERNED: Final = (
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_CLIENT_PRIORITY",
    "CUDA_MPS_PROTOCOL_VERSION",
)
"""Variables of the vendor's daemon that no lane inherits: the guard gives it its settings, and speaks protocol 2."""
_SERVICE: Final = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class LaneStartError(Exception):
    """The control daemon did not come up; the text says what it printed."""


class Launch(msgspec.Struct, frozen=True):
    """What it takes to start the control daemon of one lane."""

    name: str
    pipe_directory: str
    log_directory: str
    control_binary: str
    multiuser: bool
    gpus: tuple[str, ...]
    start_deadline: float
    """Seconds."""


Launcher = Callable[[Launch], Awaitable[None]]
"""Starts a control daemon, as `launch` does; raises LaneStartError."""


class ControlEvidence(msgspec.Struct, frozen=True):
    """What can be seen of a control daemon in one private pipe directory."""

    lock_holder: int | None
    """Pid that holds ``control_lock``, from fcntl(F_GETLK)."""
    listener: int | None
    """Pid that listens on ``control``, from SO_PEERCRED of a connection."""
    pid_file: int | None
    environment: str | None
    """CUDA_MPS_PIPE_DIRECTORY in the environment of the lock holder, None if unreadable."""
    process: ProcessKey | None
    """The lock holder with its start time, None if it is gone."""


def verdict(evidence: ControlEvidence, pipe_directory: Path) -> ProcessKey | str:
    """The daemon's identity if it is proved to be this lane's, else the reason why not."""
    holder = evidence.lock_holder
    if holder is None or evidence.process is None:
        return "nobody holds control_lock"
    if evidence.listener != holder:
        return f"process {holder} holds control_lock but {evidence.listener or 'nobody'} listens on control"
    if evidence.pid_file not in (None, holder):
        return f"the pid file names {evidence.pid_file}, the lock is held by {holder}"
    if evidence.environment != str(pipe_directory):
        return f"process {holder} was started for pipe directory {evidence.environment!r}"
    return evidence.process


async def look(pipe_directory: Path, deadline: float, stats: StatReader) -> ControlEvidence:
    """Gather the evidence; waits at most ``deadline`` seconds (a full backlog is the only thing to wait for)."""
    holder = file_lock.holder(pipe_directory / "control_lock")
    process = environment = None
    if holder is not None:
        with suppress(ProcessLookupError, TimeoutError):
            process = await stats.key(holder)
            # A daemon of ours is of our user; a stranger that holds the lock may never let its environment be read.
            if peer_user.user_of(holder, procfs.uid(holder)[0]) == os.geteuid():
                environment = procfs.environment(holder).get("CUDA_MPS_PIPE_DIRECTORY")
    listener = None
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(deadline):
            with await PacketStream.connect(str(pipe_directory / "control")) as stream:
                listener = stream.peer().pid
    return ControlEvidence(holder, listener, _read_pid(pipe_directory / PID_FILE), environment, process)


def environment_for(
    pipe_directory: Path, log_directory: Path, gpus: tuple[str, ...], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a lane's control daemon, and so of its servers.

    It is the guard's own without what concerns the service manager, and without what the guard governs. Other variables
    of the vendor's are passed on, such as CUDA_DEVICE_MAX_CONNECTIONS.
    """
    environment = {name: value for name, value in inherited.items() if name not in (*_GOVERNED, *_SERVICE)}
    environment["CUDA_MPS_PIPE_DIRECTORY"] = str(pipe_directory)
    environment["CUDA_MPS_LOG_DIRECTORY"] = str(log_directory)
    if gpus != ("all",):
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return environment


async def launch(what: Launch) -> None:
    """Start a lane's control daemon as a child of this process; raises LaneStartError."""
    environment = environment_for(Path(what.pipe_directory), Path(what.log_directory), what.gpus, os.environ)
    await start(what.control_binary, what.multiuser, environment, what.start_deadline)


async def start(binary: str, multiuser: bool, environment: Mapping[str, str], deadline: float) -> None:
    """Run ``binary -d``: it returns once the daemon listens, and the daemon has left for a session of its own.

    Raises LaneStartError if it fails or is not done within ``deadline`` seconds (then it is killed, by its own handle).
    """
    arguments = [binary, *(["-M"] if multiuser else []), "-d"]
    # A file, not a pipe: the daemon left behind keeps all that it inherited open for life.
    said = os.memfd_create("control-daemon-output", os.MFD_CLOEXEC)
    try:
        child = await asyncio.create_subprocess_exec(
            *arguments,
            env=dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            status = await wait_or_kill(child, deadline)
        except TimeoutError:
            raise LaneStartError(f"{binary} -d was not ready within {deadline:g} s") from None
        if status:
            text = os.pread(said, 4096, 0).decode(errors="replace").strip().replace("\n", "; ")
            words = f": {procfs.printable(text)}" if text else ""
            raise LaneStartError(f"{binary} -d ended with status {status}{words}")
    except OSError as error:
        raise LaneStartError(f"{binary}: {error.strerror}") from None
    finally:
        os.close(said)


def _read_pid(path: Path) -> int | None:
    try:
        text = path.read_text(errors="replace").strip("\0 \n")
    except OSError:
        return None
    return int(text) if text.isdigit() and len(text) < 10 else None
