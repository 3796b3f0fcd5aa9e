"""A command line with commands that are loaded when they are wanted.

A probe that asks every few seconds shall not load what draws a report; nor shall a supervisor of a program load the
guard, and hold it in memory for as long as that runs.
"""

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from mpsguard.linux.extras import how_to_install


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

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
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
                extra = self.extra_with(error.name or "", cmd_name)
                if extra is None:
                    raise
                return self._unavailable(ctx, cmd_name, f"{error.name}: {how_to_install(extra)}")
        command: click.Command = getattr(sys.modules[path], function or cmd_name.replace("-", "_"))
        return command

    def extra_with(self, module: str, cmd_name: str) -> str | None:
        """Return the extra that brings a module which a command imports; None if that should be there."""
        # A module of our own that is not there is a mistake of ours.
        return None if not module or module.startswith("mpsguard") else self._extras.get(cmd_name)

    def failing(self, text: str) -> Callable[..., None]:
        """Return the function of a command that says ``text``, and exits with 1."""

        def command() -> None:
            click.echo(f"mpsguard: {text}", err=True)
            sys.exit(1)

        return command

    def _unavailable(self, ctx: click.Context, cmd_name: str, what: str) -> click.Command:
        # The words of the command line behind the program's name.
        groups = [] if ctx.parent is None or ctx.info_name is None else [ctx.info_name]
        text = f"{' '.join([*groups, cmd_name])} needs {what}"
        settings = {"ignore_unknown_options": True, "allow_extra_args": True}
        help_text = f"Not available: {text}."
        return click.command(cmd_name, help=help_text, context_settings=settings)(self.failing(text))


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
