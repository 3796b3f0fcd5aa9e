"""`mpsguard-ctl image`: images of sessions on disk."""

from typing import Final

import click

from mpsguard.cli.commands import Commands
from mpsguard.cli.session import CliSession, Exit

_EXTRA: Final = {"blake3", "numpy", "safetensors"}
_PACKAGE: Final = "mpsguard.cli.image_commands"
COMMANDS: Final = {
    "list": f"{_PACKAGE}.listing:list_images",
    "show": f"{_PACKAGE}.show",
    "verify": f"{_PACKAGE}.verify",
    "remove": f"{_PACKAGE}.remove",
    "import": f"{_PACKAGE}.tensor_files:import_files",
    "export": f"{_PACKAGE}.tensor_files:export_file",
    "push": f"{_PACKAGE}.push",
    "pull": f"{_PACKAGE}.pull",
}


class _ImageCommands(Commands):
    """The commands; a missing package of the extra is one line."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """As in the base."""
        try:
            return super().get_command(ctx, cmd_name)
        except ModuleNotFoundError as error:
            if error.name not in _EXTRA:
                raise
            text = f"image {cmd_name} needs {error.name}: pip install 'mpsguard[images]'"
            ctx.ensure_object(CliSession).fail(Exit.FAILED, text)


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
