"""One domain: its control daemon, its public directory, and what its configuration needs."""

import asyncio
import os
import pwd
import resource
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from mpsguard.cli.diagnosis.finding import Finding, note, ok, problem
from mpsguard.cli.process_view import describe
from mpsguard.guard import config
from mpsguard.guard.config import ConfigError, DomainConfig
from mpsguard.guard.lanes import command
from mpsguard.guard.lanes.command import Command, CommandFailedError
from mpsguard.linux.files import file_lock
from mpsguard.linux.nvidia.uvm_tools import ToolsDriver
from mpsguard.linux.sockets.listens import listens

_ANSWER_WITHIN: Final = 5.0
"""Seconds for one command to a control daemon; it takes milliseconds, but for a lane that is being started."""
_SYSTEMCTL: Final = 10.0
"""Seconds for its answer; a busy manager is no finding."""
_FILES: Final = 65536
"""Open files of a guard: LimitNOFILE= of distribution/systemd/mpsguard.service, for 16,384 connections that wait."""


def examine(domain: DomainConfig) -> Iterator[Finding]:
    """Look at one domain."""
    yield _control_binary(domain)
    yield _way(domain)
    yield from _public_directory(domain)
    if domain.unwatched == "refuse":
        yield _watching(domain)
    if domain.classes:
        yield _levers(domain)


def _control_binary(domain: DomainConfig) -> Finding:
    subject = f"{domain.name}: control daemon"
    try:
        return ok(subject, config.find_control_binary(domain))
    except ConfigError as error:
        return problem(subject, str(error), "the package nvidia-cuda-mps (Debian), or the driver's compute package")


def _way(domain: DomainConfig) -> Finding:
    """Whether other users can reach the public directory: every directory above it must be open to them."""
    subject = f"{domain.name}: way to {domain.pipe_directory}"
    for directory in (*reversed(Path(domain.pipe_directory).parents), Path(domain.pipe_directory)):
        try:
            mode = directory.stat().st_mode
        except OSError:
            break
        if not mode & stat.S_IXOTH:
            text = f"{directory} has mode {stat.S_IMODE(mode):04o}: users other than its owner silently get no MPS"
            return problem(subject, text, f"chmod o+x {directory}")
    return ok(subject, "open to all users")


def _public_directory(domain: DomainConfig) -> Iterator[Finding]:
    subject = f"{domain.name}: {domain.pipe_directory}"
    directory = Path(domain.pipe_directory)
    try:
        owner = directory.stat().st_uid
    except FileNotFoundError:
        yield note(subject, "does not exist yet; the guard makes it", "systemctl start mpsguard")
        return
    except OSError as error:
        yield problem(subject, f"cannot be looked at: {error.strerror}", "run doctor as root")
        return
    if owner not in (0, os.geteuid()):
        text = f"belongs to {_name(owner)}, who could take the guard's place"
        yield problem(subject, text, f"chown root {directory}")
    lock = directory / "control_lock"
    pid = file_lock.holder(lock)
    if pid is None and lock.exists() and not os.access(lock, os.W_OK) and listens(directory / "control"):
        yield note(subject, "a process listens; that it is a guard, its own user alone can see", "run doctor as root")
    elif pid is None:
        text = "no guard serves it: clients that connect now run without MPS, or wait"
        yield problem(subject, text, "systemctl start mpsguard")
    else:
        yield ok(subject, f"served by {describe(pid)}")
        yield from _limits(domain, pid)
    yield _held(domain, subject)


def _name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"


def _limits(domain: DomainConfig, pid: int) -> Iterator[Finding]:
    """How many files the guard may open: every client takes some."""
    subject = f"{domain.name}: open files"
    try:
        most, _ = psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE)
    except psutil.Error:
        return
    if most != resource.RLIM_INFINITY and most < _FILES:
        text = f"the guard may have {most}: with many clients it refuses some"
        yield note(subject, text, f"LimitNOFILE={_FILES} in its unit, or ulimit -n {_FILES} before it starts")
    else:
        yield ok(subject, f"the guard may have {'any number' if most == resource.RLIM_INFINITY else most}")


def _held(domain: DomainConfig, subject: str) -> Finding:
    """Whether the service manager listens on the public socket: its entry is then in the socket unit's list."""
    systemctl = shutil.which("systemctl")
    listed = ""
    if systemctl is not None and Path("/run/systemd/system").is_dir():
        command = [systemctl, "list-sockets", "--no-legend", "--plain"]
        with suppress(OSError, subprocess.TimeoutExpired):
            listed = subprocess.run(command, capture_output=True, text=True, timeout=_SYSTEMCTL, check=False).stdout
    if str(Path(domain.pipe_directory) / "control") in listed:
        return ok(subject, "systemd holds the sockets: clients wait while no guard runs")
    return note(
        subject,
        "no mpsguard.socket holds the sockets: a client that connects while no guard runs silently gets no MPS",
        "systemctl enable --now mpsguard.socket, with this directory in it",
    )


def _watching(domain: DomainConfig) -> Finding:
    subject = f"{domain.name}: unwatched clients"
    try:
        os.close(ToolsDriver().open())
    except OSError as error:
        text = f"they are refused, and none can be watched: {error}"
        return problem(subject, text, 'unwatched = "serve", or a driver with /dev/nvidia-uvm-tools')
    return ok(subject, "a client that cannot be watched is refused")


def _levers(domain: DomainConfig) -> Finding:
    """Whether the driver has what the domain's classes set; the control daemon says it itself."""
    subject = f"{domain.name}: levers of service classes"
    try:
        missing = [key for key, words in asyncio.run(_answers(domain)).items() if words.startswith("Unknown command")]
    except CommandFailedError as error:
        return note(subject, f"not looked at, since no control daemon answers: {error}")
    if missing:
        keys = ", ".join(missing)
        text = f"this driver's MPS has none for {keys}: such classes are not applied"
        return problem(subject, text, f"take {keys} out of the classes, or a later driver")
    return ok(subject, "this driver's MPS has all that the classes set")


async def _answers(domain: DomainConfig) -> dict[str, str]:
    """Return what the control daemon says of each key of classes that the domain uses."""
    asked: dict[str, str] = {}
    for each in domain.classes:
        if each.sm_share is not None:
            asked["sm_share"] = "get_default_active_thread_percentage"
        if each.priority is not None:
            asked["priority"] = "get_default_client_priority"
        for gpu in each.memory_limit:
            asked["memory_limit"] = f"get_default_device_pinned_mem_limit {gpu}"
    directory = Path(domain.pipe_directory)
    replies = {
        key: await command.ask(directory, Command(line, privileged=False), _ANSWER_WITHIN)
        for key, line in asked.items()
    }
    return {key: " ".join(reply.lines) for key, reply in replies.items()}
