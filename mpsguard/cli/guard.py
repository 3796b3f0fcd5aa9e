"""The command line `mpsguard`."""

from typing import Final

import click

import mpsguard
from mpsguard.cli.commands import Commands

COMMANDS: Final = {
    "serve": "mpsguard.cli.serve",
    "check-config": "mpsguard.cli.serve",
    "run": "mpsguard.cli.run",
    "pool": "mpsguard.cli.pool",
    "kubernetes-reporter": "mpsguard.cli.kubernetes_reporter",
}
"""The commands and their modules."""
_EXTRAS: Final = {
    "serve": "daemon",
    "check-config": "daemon",
    "pool": "images",
    "kubernetes-reporter": "kubernetes",
}
"""The extra that each command needs beside `ctl`."""


@click.group(
    cls=Commands,
    modules=COMMANDS,
    extras=_EXTRAS,
    epilog="Exit codes: 0 ended in order, 1 could not start or failed, 2 usage or configuration; `run` has its own.",
)
@click.version_option(mpsguard.__version__, package_name="mpsguard")
def main() -> None:
    """Fault resilience for NVIDIA MPS, in the place of the MPS control daemon."""


if __name__ == "__main__":
    main()
