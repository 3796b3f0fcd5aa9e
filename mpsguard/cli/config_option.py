"""The option ``--config``, of whatever starts from the guard's configuration."""

from pathlib import Path

import click

from mpsguard.guard import config

config_option = click.option(
    "--config", "path", type=click.Path(path_type=Path), help=f"TOML file; default {config.DEFAULT_PATH} if it exists."
)
