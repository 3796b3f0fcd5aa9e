"""A command line with commands that are loaded when they are wanted.

A probe that asks every few seconds shall not load what draws a report; nor shall a supervisor of a program load the
guard, and hold it in memory for as long as that runs.
"""

import gc
import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from mpsguard.cli.extras import how_to_install


class Commands(click.Group):
    """A group of commands, each in a module of its own under its own name (with ``_`` for ``-``).

    A command with a name that no function can have is given as ``module:function``.
    """

    def __init__(
        self, *arguments: Any, modules: Mapping[str, str], extras: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        """Group the commands.

        Args:
            arguments: of click's group.
            modules: by the command's name.
            extras: by the command's name, the extra of the project that brings what its module imports. Without it the
                command can be listed and completed, and says what is missing.
            more: of click's group.
        """
        super().__init__(*arguments, **more)
        self._modules = modules
        self._extras = extras or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        """Their names, in order as click has them."""
        return sorted(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        """Load one; None if there is none of that name."""
        module = self._modules.get(cmd_name)
        if module is None:
            return None
        path, _, function = module.partition(":")
        if path not in sys.modules:
            try:
                with _without_collector():
                    importlib.import_module(path)
            except ModuleNotFoundError as error:
                # A module of our own that is not there is a mistake of ours.
                if cmd_name not in self._extras or error.name is None or error.name.startswith("mpsguard"):
                    raise
                return _unavailable(
                    cmd_name, f"{cmd_name} needs {error.name}: {how_to_install(self._extras[cmd_name])}"
                )
        command: click.Command = getattr(sys.modules[path], function or cmd_name.replace("-", "_"))
        return command


def _unavailable(name: str, text: str) -> click.Command:
    @click.command(
        name,
        help=f"Not available: {text}.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def command() -> None:
        click.echo(f"mpsguard: {text}", err=True)
        sys.exit(1)

    return command


@contextmanager
def _without_collector() -> Iterator[None]:
    """Import what stays: the collector finds nothing in it, now or later, which takes a tenth of a guard's start."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
