"""Which options the command line has, and not only their default values."""

from collections.abc import Mapping

import click
from click.core import ParameterSource


def given_options(names: Mapping[str, str]) -> list[str]:
    """Return those of the command that runs now; ``names``: options by the names of their parameters."""
    context = click.get_current_context()
    return [
        option for name, option in names.items() if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
