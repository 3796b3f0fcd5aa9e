"""Options of several commands: ``--config``, and which options the command line has itself."""

from collections.abc import Mapping
from pathlib import Path

import click
from click.core import ParameterSource

from mpsguard.guard import config

config_option = click.option(
    "--config", "path", type=click.Path(path_type=Path), help=f"TOML file; default {config.DEFAULT_PATH} if it exists."
)


def given_options(names: Mapping[str, str]) -> list[str]:
    """Return those of the command that runs now; ``names``: options by the names of their parameters."""
    context = click.get_current_context()
    return [
        option for name, option in names.items() if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
