"""The command line `mpsguard-ctl`."""

from typing import Final

import click
from click.core import ParameterSource

import mpsguard
from mpsguard.cli.commands import Commands
from mpsguard.cli.session import Session
from mpsguard.config import DEFAULT_RUN_DIRECTORY

COMMANDS: Final = {
    "status": "mpsguard.cli.status",
    "clients": "mpsguard.cli.clients",
    "lanes": "mpsguard.cli.lanes",
    "events": "mpsguard.cli.events",
    "incidents": "mpsguard.cli.incidents",
    "incident": "mpsguard.cli.incident",
    "terminate": "mpsguard.cli.terminate",
    "move": "mpsguard.cli.move",
    "lifelines": "mpsguard.cli.lifelines",
    "mps": "mpsguard.cli.mps",
    "metrics": "mpsguard.cli.metrics",
    "doctor": "mpsguard.cli.doctor",
    "vault": "mpsguard.cli.vault",
}
"""The commands and their modules."""


@click.group(
    cls=Commands,
    modules=COMMANDS,
    epilog="Exit codes: 0 healthy or done, 1 failed, 2 usage, 3 degraded, 4 a lane in FAULT, 5 guard unreachable.",
)
@click.option(
    "--run-directory",
    envvar="MPSGUARD_RUN_DIRECTORY",
    default=DEFAULT_RUN_DIRECTORY,
    show_default=True,
    help="Where the guard's sockets are.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of tables.")
@click.option(
    "--deadline",
    type=click.FloatRange(0.1, 600),
    default=10.0,
    show_default=True,
    help="Seconds for an answer.",
)
@click.version_option(mpsguard.__version__, package_name="mpsguard")
@click.pass_context
def main(context: click.Context, run_directory: str, as_json: bool, deadline: float) -> None:
    """Look at a running mpsguard and tell it what to do."""
    named = context.get_parameter_source("run_directory") is not ParameterSource.DEFAULT
    context.obj = Session(run_directory, as_json, deadline, run_directory_named=named)


if __name__ == "__main__":
    main()
