"""`mpsguard-ctl image`: images of sessions on disk."""

from collections.abc import Callable
from typing import Final

import click

from mpsguard.cli.commands import Commands
from mpsguard.cli.session import CliSession, Exit, with_session

_EXTRA: Final = {"blake3", "numpy", "safetensors"}
_PACKAGE: Final = "mpsguard.cli.image_commands"
COMMANDS: Final = {
    "list": f"{_PACKAGE}.stored:list_images",
    "show": f"{_PACKAGE}.stored",
    "verify": f"{_PACKAGE}.stored",
    "remove": f"{_PACKAGE}.stored",
    "import": f"{_PACKAGE}.tensor_files:import_files",
    "export": f"{_PACKAGE}.tensor_files:export_file",
    "push": f"{_PACKAGE}.streamed",
    "pull": f"{_PACKAGE}.streamed",
}


class _ImageCommands(Commands):
    """The commands; without the extra they can be listed and completed, and say what is missing."""

    def extra_with(self, module: str, cmd_name: str) -> str | None:  # noqa: ARG002 - all of them need the same
        """As in the base."""
        return "images" if module in _EXTRA else None

    def failing(self, text: str) -> Callable[..., None]:
        """As in the base; with --json, the line is a document."""

        @with_session
        def command(session: CliSession) -> None:
            session.fail(Exit.FAILED, text)

        return command


@click.group(
    cls=_ImageCommands,
    modules=COMMANDS,
    epilog="Exit codes: 0 done; 1 failed; 2 usage; 3 an image is damaged; 6 there is no such image; 7 no room: the "
    "store's quota, or the disk.",
)
def image() -> None:
    """Look at images of sessions on disk, and move them.

    They lie in the directory MPSGUARD_IMAGES, or else mpsguard/images in XDG_DATA_HOME or ~/.local/share. No guard is
    needed. MPSGUARD_IMAGES_QUOTA limits what all images take up together, such as 200G.
    """
