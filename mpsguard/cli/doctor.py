"""`mpsguard-ctl doctor`: what is, or may become, wrong with this machine's set-up, found without the guard's help."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from mpsguard.cli.diagnosis import domains, driver, guard_health, machine, programs
from mpsguard.cli.diagnosis.finding import Finding, Grade, ok, problem
from mpsguard.cli.session import CliSession, Exit, with_session
from mpsguard.guard import config
from mpsguard.guard.config import Config, ConfigError
from mpsguard.guard.control_api import protocol

_MARKS = {Grade.OK: "+", Grade.NOTE: "·", Grade.PROBLEM: "!"}


def examine(settings: Config) -> Iterator[Finding]:
    """Look at the machine; reads only."""
    run_directory = settings.guard.run_directory
    yield machine.rights()
    yield machine.pid_namespace()
    if all(domain.simulated for domain in settings.domain):
        yield ok("driver", "not looked at: all domains are simulated")
    else:
        yield driver.modules()
        yield driver.library()
        yield driver.containment()
    for domain in settings.domain:
        yield from domains.examine(domain)
    yield machine.descriptors()
    yield machine.system_calls()
    yield machine.execs()
    yield _api(settings)
    yield from guard_health.problems(run_directory)
    yield from programs.other_daemons(Path(run_directory))
    yield from programs.past_the_guard(run_directory, [domain.pipe_directory for domain in settings.domain])


def _api(settings: Config) -> Finding:
    path = protocol.api_socket(settings.guard.run_directory)
    try:
        if path.is_socket():
            return ok("control API", str(path))
    except OSError as error:
        return problem("control API", f"{path}: {error.strerror}", "run doctor as root, or in the guard's group")
    return problem("control API", f"{path} is not there: no guard runs", "systemctl start mpsguard")


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
            fix = f" -> {finding.fix}" if finding.fix else ""
            session.console.print(f"  {_MARKS[finding.grade]} {finding.subject}: {finding.text}{fix}", markup=False)
    sys.exit(Exit.DEGRADED if any(f.grade is Grade.PROBLEM for f in findings) else Exit.OK)
