"""Programs that use the GPU past the guard: other control daemons, and clients that silently got no MPS."""

import asyncio
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from mpsguard.cli.diagnosis.finding import Finding, note, ok
from mpsguard.cli.process_view import STOCK_DEFAULT, control_daemons, describe
from mpsguard.guard import config
from mpsguard.guard.control_api import async_client
from mpsguard.guard.control_api.async_client import NoAnswerError
from mpsguard.guard.control_api.messages.clients import ClientList, ClientsArguments
from mpsguard.linux.files import file_lock

_WITHIN: Final = 5.0
"""Seconds for the guard's list of its clients."""
DEVICE: Final = Path("/dev/nvidia-uvm")
"""Every CUDA program has it open, and what only looks at GPUs (nvidia-smi, exporters) does not."""


def other_daemons(run_directory: Path) -> Iterator[Finding]:
    """Control daemons that are no lanes of this guard: their clients have its faults, and none of its protection."""
    subject = "stock daemon"
    others = [
        daemon
        for daemon in control_daemons()
        if daemon.pipe_directory is None or not daemon.pipe_directory.is_relative_to(run_directory)
    ]
    for daemon in others:
        named = f"process {daemon.pid} of user {daemon.user}"
        if daemon.pipe_directory is None:
            yield note(subject, f"{named}; only root can see which directory it serves", "run doctor as root")
        elif (other := config.run_directory_of(daemon.pipe_directory)) is not None:
            yield _lane_of_another_guard(named, daemon.pipe_directory, other)
        else:
            bare = (
                " without CUDA_MPS_PIPE_DIRECTORY" if daemon.pipe_directory == STOCK_DEFAULT else " with that directory"
            )
            text = f"{named} serves {daemon.pipe_directory}: programs{bare} go there, past the guard"
            quit_it = f"echo quit | CUDA_MPS_PIPE_DIRECTORY={daemon.pipe_directory} nvidia-cuda-mps-control"
            yield note(subject, text, f"if nothing needs it: {quit_it}")
    if not others:
        yield ok(subject, "none runs beside the guard's lanes")


def _lane_of_another_guard(named: str, pipe_directory: Path, run_directory: Path) -> Finding:
    """Return what is to be said of it. It has clients that are guarded: no command here ends it."""
    subject = "another guard's lane"
    guard = file_lock.holder(config.public_lock(run_directory, config.domain_of_lane(pipe_directory.parent.name)))
    serves = (
        f"the guard is {describe(guard)}" if guard is not None else "no guard runs there now, and the next adopts it"
    )
    text = f"{named} is a lane in the run directory {run_directory}; {serves}"
    return note(subject, text, f"to look at it: mpsguard-ctl --run-directory {run_directory} status")


def past_the_guard(run_directory: str, directories: Sequence[str], device: Path = DEVICE) -> Iterator[Finding]:
    """Programs that were told to use the guard and are no clients of it: CUDA runs without MPS then, and says nothing.

    Args:
        run_directory: the guard's.
        directories: public pipe directories of its domains; those of classes and standbys lie below.
        device: what a program that uses CUDA has open.
    """
    subject = "programs past the guard"
    try:
        answer = asyncio.run(async_client.ask(run_directory, "clients", ClientsArguments(), ClientList, _WITHIN))
    except NoAnswerError:
        yield note(subject, "not looked at: no guard says which clients it has")
        return
    known = {client.process.pid for client in answer.clients}
    found = 0
    for pid in told(directories, device, known):
        found += 1
        text = f"{describe(pid)} uses the GPU without MPS, although its CUDA_MPS_PIPE_DIRECTORY names the guard's"
        yield note(subject, text, "start it again; it began while no guard served, or another one did")
    if not found:
        yield ok(subject, "every program here that was told to use the guard, and uses CUDA, is its client")


def told(directories: Sequence[str], device: Path, known: Collection[int]) -> Iterator[int]:
    """Return programs that have ``device`` open, were told to use one of ``directories``, and are not ``known``."""
    for process in psutil.process_iter(["environ"]):
        directory = (process.info["environ"] or {}).get("CUDA_MPS_PIPE_DIRECTORY")
        if directory is None or process.pid in known or process.pid == os.getpid():
            continue
        if any(Path(directory).is_relative_to(each) for each in directories) and _has_open(process.pid, device):
            yield process.pid


def _has_open(pid: int, device: Path) -> bool:
    """Whether a process has a device open; psutil lists regular files alone."""
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            # Descriptors come and go while they are looked at.
            with suppress(FileNotFoundError):
                if entry.readlink() == device:
                    return True
    except OSError:
        return False
    return False
