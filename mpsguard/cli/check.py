"""`mpsguard-ctl check` and `mpsguard-ctl repaired`: probes of Kubernetes, Slurm and node-problem-detector."""

import sys
import time
from typing import Final

import click

from mpsguard.cli.session import AskError, CliSession, with_session
from mpsguard.guard.control_api.health import ProbeAnswer, ProbeKind, line
from mpsguard.guard.control_api.messages.guard import CheckArguments, Repaired
from mpsguard.guard.control_api.protocol import NoArguments

_PATIENT: Final = frozenset({ProbeKind.SLURM, ProbeKind.NPD})
"""Probes that wait for a guard that is just being restarted: what a no causes lasts longer than that."""
_NPD_DEADLINE: Final = 3.0
"""Seconds for an answer; node-problem-detector gives a plugin five, the start of this program included."""
_PAUSE: Final = 0.25
"""Seconds between two attempts to reach the guard."""


@click.command()
@click.option(
    "--for",
    "purpose",
    type=click.Choice([each.value for each in ProbeKind]),
    required=True,
    help="live: the guard's loop turns. ready: a client that comes now is served. slurm: the node may have jobs. "
    "npd: no fault now.",
)
@with_session
def check(session: CliSession, purpose: str) -> None:
    """Answer a probe: exit 0 or 1, and one line of at most 80 characters.

    A guard that is only degraded is a 0, and no node is drained for it, unless programs that start now run without MPS:
    a pipe directory was removed, and could not be made again. For Slurm a lane counts as faulty once it has been
    in FAULT for a minute, or is FAILING; a fault of the GPU itself counts until the machine starts again or
    `mpsguard-ctl repaired`.
    """
    said = _ask(session, ProbeKind(purpose))
    if session.as_json:
        session.print_json(said)
    else:
        click.echo(said.text)
    sys.exit(0 if said.ok else 1)


@click.command()
@with_session
def repaired(session: CliSession) -> None:
    """Take note that the GPUs were repaired or reset: device faults so far no longer drain the node."""
    result = session.ask("repaired", NoArguments(), Repaired)
    if session.as_json:
        session.print_json(result)
        return
    for fault in result.device_faults:
        click.echo(f"no longer stands: incident {fault.incident}, GPU {fault.gpu or '?'}")


def _ask(session: CliSession, purpose: ProbeKind) -> ProbeAnswer:
    within = min(session.deadline, _NPD_DEADLINE) if purpose is ProbeKind.NPD else session.deadline
    due = time.monotonic() + within
    while True:
        try:
            left = max(due - time.monotonic(), _PAUSE)
            return session.request("check", CheckArguments(purpose), ProbeAnswer, left)
        except AskError as error:
            if purpose not in _PATIENT or time.monotonic() + _PAUSE > due:
                return ProbeAnswer(False, line(str(error)))
            time.sleep(_PAUSE)
