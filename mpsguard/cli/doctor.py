"""`mpsguard-ctl doctor`: what is, or may become, wrong with this machine's set-up, found without the guard's help."""

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

import click
import msgspec

from mpsguard import config
from mpsguard.cli.process_view import STOCK_DEFAULT, control_daemons, describe
from mpsguard.cli.session import CliSession, Exit, with_session
from mpsguard.config import Config, ConfigError
from mpsguard.control_api import protocol
from mpsguard.lanes import command
from mpsguard.lanes.command import Command, CommandFailedError
from mpsguard.linux.files import file_lock
from mpsguard.linux.nvidia.uvm_tools import ToolsDriver
from mpsguard.linux.processes import exec_watch, privileges
from mpsguard.linux.sockets import seqpacket
from mpsguard.sensors import kmod

_ANSWER_WITHIN: Final = 5.0
"""Seconds for one command to a control daemon; it takes milliseconds, but for a lane that is being started."""


class Grade(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """One thing looked at."""

    subject: str
    grade: Grade
    text: str


def examine(settings: Config) -> Iterator[Finding]:
    """Look at the machine; reads only."""
    yield _privileges()
    for domain in settings.domain:
        yield _control_binary(domain)
        yield from _public_directory(domain)
        if domain.unwatched == "refuse":
            yield _watching(domain)
        if domain.classes:
            yield _levers(domain)
    yield _descriptors()
    yield _system_calls()
    yield _api(settings)
    yield from _stock_daemons(Path(settings.guard.run_directory))
    yield _kernel_module()
    yield _execs()


def _privileges() -> Finding:
    if seqpacket.may_impersonate():
        return Finding("privileges", Grade.OK, "a guard of this user can introduce clients as themselves")
    return Finding(
        "privileges",
        Grade.NOTE,
        "a guard of this user serves only its own user's clients (CAP_SYS_ADMIN, CAP_SETUID, CAP_SETGID are missing)",
    )


def _descriptors() -> Finding:
    subject = "strangers' descriptors"
    if seqpacket.kernel_refuses_descriptors():
        return Finding(subject, Grade.OK, "the kernel refuses them at the public sockets (SO_PASSRIGHTS)")
    return Finding(
        subject,
        Grade.NOTE,
        "the kernel lets peers send them (SO_PASSRIGHTS came with Linux 6.16): closed on threads of each user's own",
    )


def _system_calls() -> Finding:
    subject = "system calls"
    if privileges.filter_library() is None:
        return Finding(subject, Grade.NOTE, "no libseccomp.so.2: a guard runs without a filter of system calls")
    return Finding(subject, Grade.OK, "a guard that finds the driver loaded denies itself those it never makes")


def _control_binary(domain: config.DomainConfig) -> Finding:
    subject = f"{domain.name}: control daemon"
    try:
        return Finding(subject, Grade.OK, config.find_control_binary(domain))
    except ConfigError as error:
        return Finding(subject, Grade.PROBLEM, str(error))


def _watching(domain: config.DomainConfig) -> Finding:
    subject = f"{domain.name}: unwatched clients"
    try:
        os.close(ToolsDriver().open())
    except OSError as error:
        return Finding(subject, Grade.PROBLEM, f"they are refused, and none can be watched: {error}")
    return Finding(subject, Grade.OK, "a client that cannot be watched is refused")


def _levers(domain: config.DomainConfig) -> Finding:
    """Whether the driver has what the domain's classes set; the control daemon says it itself."""
    subject = f"{domain.name}: levers of service classes"
    try:
        missing = [key for key, words in asyncio.run(_answers(domain)).items() if words.startswith("Unknown command")]
    except CommandFailedError as error:
        return Finding(subject, Grade.NOTE, f"not looked at, since no control daemon answers: {error}")
    if missing:
        keys = ", ".join(missing)
        return Finding(subject, Grade.PROBLEM, f"this driver's MPS has none for {keys}: such classes are not applied")
    return Finding(subject, Grade.OK, "this driver's MPS has all that the classes set")


async def _answers(domain: config.DomainConfig) -> dict[str, str]:
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


def _public_directory(domain: config.DomainConfig) -> Iterator[Finding]:
    subject = f"{domain.name}: {domain.pipe_directory}"
    directory = Path(domain.pipe_directory)
    if not directory.is_dir():
        yield Finding(subject, Grade.NOTE, "does not exist yet; the guard makes it")
        return
    if directory.stat().st_uid not in (0, os.geteuid()):
        yield Finding(subject, Grade.PROBLEM, "belongs to another user, who could take the guard's place")
    pid = file_lock.holder(directory / "control_lock")
    if pid is None:
        yield Finding(subject, Grade.PROBLEM, "no guard serves it: clients that connect now run without MPS, or wait")
    else:
        yield Finding(subject, Grade.OK, f"served by {describe(pid)}")
    yield _held(domain, subject)


def _held(domain: config.DomainConfig, subject: str) -> Finding:
    """Whether the service manager listens on the public socket: its entry is then in the socket unit's list."""
    systemctl = shutil.which("systemctl")
    listed = ""
    if systemctl is not None and Path("/run/systemd/system").is_dir():
        with os.popen(f"{systemctl} list-sockets --no-legend --plain") as output:  # noqa: S605  # no stranger's input
            listed = output.read()
    if str(Path(domain.pipe_directory) / "control") in listed:
        return Finding(subject, Grade.OK, "systemd holds the sockets: clients wait while no guard runs")
    return Finding(
        subject,
        Grade.NOTE,
        "no mpsguard.socket holds the sockets: a client that connects while no guard runs silently gets no MPS",
    )


def _api(settings: Config) -> Finding:
    path = protocol.api_socket(settings.guard.run_directory)
    if path.is_socket():
        return Finding("control API", Grade.OK, str(path))
    return Finding("control API", Grade.PROBLEM, f"{path} is not there: no guard runs")


def _stock_daemons(run_directory: Path) -> Iterator[Finding]:
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
            yield Finding(subject, Grade.NOTE, f"{named}; only root can see which directory it serves")
            continue
        bare = " without CUDA_MPS_PIPE_DIRECTORY" if daemon.pipe_directory == STOCK_DEFAULT else " with that directory"
        text = f"{named} serves {daemon.pipe_directory}: programs{bare} go there, past the guard"
        yield Finding(subject, Grade.NOTE, text)
    if not others:
        yield Finding(subject, Grade.OK, "none runs beside the guard's lanes")


def _kernel_module() -> Finding:
    """The patched module is opt-in: without it nothing is wrong."""
    mode = kmod.mode()
    return Finding("kernel module", Grade.OK if mode.present else Grade.NOTE, mode.detail)


def _execs() -> Finding:
    """How soon the guard sees that a client has executed another program."""
    try:
        exec_watch.exec_events().close()
    except OSError as error:
        late = f"a client's exec is seen within {exec_watch.LOOK:g} s: process events: {error}"
        return Finding("process events", Grade.NOTE, late)
    return Finding("process events", Grade.OK, "the kernel tells of a client's exec at once")


@click.command()
@click.option("--config", "path", type=click.Path(path_type=Path), help="The guard's configuration file.")
@with_session
def doctor(session: CliSession, path: Path | None) -> None:
    """Look over this machine's set-up; exit 0 if nothing is wrong, 3 if something is."""
    try:
        settings = config.load(path)
    except ConfigError as error:
        session.fail(Exit.USAGE, str(error))
    if session.run_directory_named:
        guard = msgspec.structs.replace(settings.guard, run_directory=session.run_directory)
        settings = msgspec.structs.replace(settings, guard=guard)
    findings = list(examine(settings))
    if session.as_json:
        session.print_json(findings)
    else:
        for finding in findings:
            mark = {Grade.OK: "+", Grade.NOTE: "·", Grade.PROBLEM: "!"}[finding.grade]
            session.console.print(f"  {mark} {finding.subject}: {finding.text}", markup=False)
    sys.exit(Exit.DEGRADED if any(f.grade is Grade.PROBLEM for f in findings) else Exit.OK)
