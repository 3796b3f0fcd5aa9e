"""`mpsguard-ctl image`: images of sessions on disk."""

from typing import Final

import click

from mpsguard.cli.commands import Commands
from mpsguard.cli.extras import how_to_install
from mpsguard.cli.session import CliSession, Exit, with_session

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
    """The commands; without the extra they can be listed and completed, and say what is missing."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """As in the base."""
        try:
            return super().get_command(ctx, cmd_name)
        except ModuleNotFoundError as error:
            if error.name not in _EXTRA:
                raise
            return _unavailable(cmd_name, error.name)


def _unavailable(name: str, missing: str) -> click.Command:
    text = f"image {name} needs {missing}: {how_to_install('images')}"

    @click.command(
        name,
        help=f"Not available: {text}.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
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
